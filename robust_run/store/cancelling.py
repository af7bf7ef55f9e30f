"""Calling off a read that is under way in another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """A cancellation token: tells a read that its caller does not wait for it any more. Used once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupts: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether it has been called off."""
        return self._cancelled

    def cancel(self) -> None:
        """Call it off: all callbacks of `calling` are called, from this thread."""
        with self._lock:
            self._cancelled = True
            for interrupt in self._interrupts:
                interrupt()

    @contextmanager
    def calling(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have `interrupt` called when it is called off within the block; at once where it already is.

        After the block it is not being called any more. It must not block and not raise.
        """
        with self._lock:
            if self._cancelled:
                interrupt()
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
