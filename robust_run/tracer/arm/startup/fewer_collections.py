"""Fewer garbage collections while a worker imports torch, and none of torch itself afterwards.

`sitecustomize` loads this file by its path. Importing torch makes some hundred thousand objects that stay: Python looks at all
of them again and again while they become more, once at each full collection of the training, and several times at the exit. That
takes a fifth of the import, and most of the exit. So while torch (and torch._dynamo, which an optimizer imports) is executed,
collections are as rare as in a warm process; what is there then is moved to where Python does not look (`gc.freeze`).

What a program may notice: `gc.get_objects()` leaves out what was there when torch had been imported, and cycles among objects
that are older than torch are never freed. So it is not done in a program that had many objects by then, or settings of its own.

No failure of ours reaches the program. Python's standard library only.
"""

from __future__ import annotations

import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SELDOM = (100_000, 50, 50)
"""Thresholds, as a warm process has them while it imports (a test keeps the two equal): some megabytes of garbage at most."""
MOST_OBJECTS = 150_000
"""A program with more than that before it imports torch holds data of its own, whose cycles must be freed as ever."""


def begin_torch() -> Callable[[], None]:
    """Make collections rare, before torch is executed. Return what ends that."""
    few = len(gc.get_objects()) <= MOST_OBJECTS
    end = begin()

    def end_and_freeze() -> None:
        if end() and few:
            gc.freeze()

    return end_and_freeze


def begin() -> Callable[[], bool]:
    """Make collections rare. Return what ends that, and then returns True; False if the program has settings of its own."""
    thresholds = gc.get_threshold()
    if not gc.isenabled() or thresholds[0] == 0 or thresholds == SELDOM:
        return lambda: False
    gc.set_threshold(*SELDOM)

    def end() -> bool:
        if gc.get_threshold() != SELDOM or not gc.isenabled():
            return False
        gc.set_threshold(*thresholds)
        return True

    return end


AROUND = {"torch": begin_torch, "torch._dynamo": begin}
"""By module, what is called before it is executed; that returns what is called after it."""
