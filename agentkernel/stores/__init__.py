"""Where sessions live: in memory, in files of JSON lines, or in SQLite."""

from .memory import MemoryStore as MemoryStore
