"""Fewer garbage collections while a worker imports torch.

`sitecustomize` loads this file by its path. Importing torch makes some hundred thousand objects that stay: Python looks at all
of them again and again while they become more. So while torch (and torch._dynamo, which an optimizer imports) is executed,
collections are rare, and as ever afterwards. A warm process imports in the same way.

What was made is not frozen (`gc.freeze`), though that would spare the exit half a second: what was there by then would be looked
at no more as the interpreter ends, and a file that a module of the program had opened would lose what it had not written yet.

No failure of ours reaches the program. Python's standard library only.
"""

from __future__ import annotations

import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SELDOM = (100_000, 50, 50)
"""Thresholds: some megabytes of garbage at most."""


def begin() -> Callable[[], None]:
    """Make collections rare. Return what ends that; a program that has settings of its own keeps them."""
    thresholds = gc.get_threshold()
    if not gc.isenabled() or thresholds[0] == 0 or thresholds[:2] == SELDOM[:2]:
        return lambda: None
    gc.set_threshold(*SELDOM)
    seldom = gc.get_threshold()  # not what was set: Python 3.14.0 to 3.14.4 always tell 0 for the third

    def end() -> None:
        if gc.get_threshold() == seldom:
            gc.set_threshold(*thresholds)

    return end


AROUND = {"torch": begin, "torch._dynamo": begin}
"""By module, what is called before it is executed; that returns what is called after it."""
