"""A guard in real time, for a run that virtual time cannot end.

Under a virtual clock a run that waits for ever meets its alarm at once; one that
spins, or that waits for a thread, never does. The guard interrupts the main thread
then, as Ctrl-C would. Its own thread is joined when the block is left.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["hang_guard"]


@contextmanager
def hang_guard(seconds: float = 60.0) -> Generator[None, None, None]:
    """Interrupt a block that takes longer than this in real time.

    Outside of the main thread it does nothing: there is nobody to interrupt.

    Raises:
      AssertionError: if the block had to be interrupted.

    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    fired = threading.Event()

    def fire() -> None:
        fired.set()
        _thread.interrupt_main()

    timer = threading.Timer(seconds, fire)
    timer.start()
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not fired.is_set():
            raise
        raise AssertionError(f"it hung for {seconds:g} real seconds") from interrupt
    finally:
        timer.cancel()
        timer.join()
