"""Writes into the ring how long the main thread has waited for its DataLoader, after each step. Python's standard library only.

`sitecustomize` loads this file by its path at the first step of a program that has torch's DataLoader. What is measured is the
time inside `next()` of its iterators: waiting for loader processes, or loading itself where there are none. The layout is that of
`robust_run.tracer.files.data_waits`; a test keeps the two equal. It costs some hundred nanoseconds for each batch and step.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    def give_up(reason: Exception, what: str = ...) -> None:
        """Say once that something is not done, and why, on one line; `sitecustomize` puts it here."""
        ...


DATA_AT, DATA_CELLS = 128, 112
STEPS_CELL = 6  # as `recorder` has it


class Waits:
    """The waits of one process."""

    def __init__(self, ring: Any) -> None:
        self.ring = ring
        self.waited_ns = 0
        self.is_inside = False  # of an outer iterator: its wait counts
        self.is_off = False

    def install(self, module: ModuleType) -> None:
        """Wrap the iterators of `torch.utils.data.dataloader`, those too that are in use."""
        module._BaseDataLoaderIter.__next__ = self.timed(module._BaseDataLoaderIter.__next__)

    def timed(self, original: Any) -> Any:
        """Wrap an iterator's `__next__`. It is called exactly once, and what it returns or raises is passed on."""
        main_thread = self.ring.main_thread

        @functools.wraps(original)
        def timed(iterator: Any) -> Any:
            if self.is_inside or get_ident() != main_thread:
                return original(iterator)
            began_ns = monotonic_ns()
            self.is_inside = True
            try:
                return original(iterator)
            finally:
                self.is_inside = False
                self.waited_ns += monotonic_ns() - began_ns

        return timed

    def mark(self) -> None:
        """Note the waits by now, at the end of a step that the ring has counted."""
        if self.is_off or not self.ring.recording:
            return
        try:
            cells = self.ring.cells
            cells[(DATA_AT >> 3) + cells[STEPS_CELL] % DATA_CELLS] = self.waited_ns
        except Exception as error:
            self.is_off = True
            give_up(error, "timing the loading of data")
