"""Agents that this project did not write, to test its client of their protocol against.

They are the examples that the two reference libraries publish: the Python one in its
source distribution, the TypeScript one in its package. They are fetched once, at a
fixed version, into the checkout's build folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".build" / "acp-peers"
PYTHON_VERSION: Final = "0.12.1"
# The last version whose package holds compiled examples.
NODE_VERSION: Final = "1.9.0"


def python_peer() -> tuple[str, ...]:
    """The command of the Python library's example agent."""
    folder = CACHE / f"agent_client_protocol-{PYTHON_VERSION}"
    if not folder.is_dir():
        name = "agent-client-protocol"
        _run(
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps"),
            *("--no-binary", name, "-d", str(CACHE), f"{name}=={PYTHON_VERSION}"),
        )
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return (sys.executable, str(folder / "examples" / "agent.py"))


def node_peer() -> tuple[str, ...]:
    """The command of the TypeScript library's example agent."""
    folder = CACHE / f"node-{NODE_VERSION}"
    package = folder / "node_modules" / "@agentclientprotocol" / "sdk"
    if not package.is_dir():
        _run(
            *(_tool("npm"), "install", "--silent", "--no-fund"),
            *("--prefix", str(folder)),
            f"@agentclientprotocol/sdk@{NODE_VERSION}",
        )
    return (_tool("node"), str(package / "dist" / "examples" / "agent.js"))


def _tool(name: str) -> str:
    """Find a program of Node.js: the machine's, or the one beside this Python."""
    beside = f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"
    found = shutil.which(name, path=beside)
    assert found is not None, f"the TypeScript example needs {name}"
    return found


def _run(*command: str) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=300)
