"""The command line: `agentkernel run`, `agentkernel chat`, `agentkernel sessions`.

It stands above everything else and uses the public surface only. One process is one
Trio run with one kernel; see `docs/cli.md` for what a user can rely on. The way of a
command through the modules:

    entry ─▶ settings ─▶ application ─▶ run, chat, sessions ─▶ opening ─▶ the agent
                          │  signals, life: what ends it
                          └  console: what it prints
"""

from .entry import main as main
