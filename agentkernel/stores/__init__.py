"""Where sessions live: in memory, in files of JSON lines, or in SQLite."""

from .jsonl import JsonlStore as JsonlStore
from .memory import MemoryStore as MemoryStore
from .sqlite import SqliteStore as SqliteStore
