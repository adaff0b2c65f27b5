"""Shell hooks: an owner's commands at points of a turn, as Claude Code and Codex do it.

    settings ─▶ Hooks ─▶ matcher ─▶ executor ─▶ verdict ─▶ what the kernel is told

`load_settings` reads files, `Hooks` listens to agents. Reading and judging are pure;
only the executor touches processes.
"""

from .detached import MAX_DETACHED as MAX_DETACHED, MAX_WAKES as MAX_WAKES
from .ends import MAX_BLOCKS as MAX_BLOCKS
from .executor import CommandExecutor as CommandExecutor, HookExecutor as HookExecutor
from .hook import Hook as Hook, HookEvent as HookEvent
from .hooks import Hooks as Hooks
from .matcher import Dialect as Dialect, Matcher as Matcher
from .reading import HookSettingsError as HookSettingsError
from .runner import HOOK_MESSAGE as HOOK_MESSAGE
from .runs import MAX_WAITED as MAX_WAITED
from .settings import HookSettings as HookSettings, load_settings as load_settings
from .verdict import HookRun as HookRun, Verdict as Verdict
