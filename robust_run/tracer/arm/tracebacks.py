"""Leaves the frames of our wrappers out of the traceback that an uncaught exception of the main thread prints.

`sitecustomize` loads this file by its path. A program that has an `excepthook` of its own keeps it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


def install(folder: str) -> None:
    """Print uncaught exceptions without frames of files in `folder`, as long as the program has nothing else in mind."""
    if sys.excepthook is not sys.__excepthook__:
        return
    sys.excepthook = Hook(folder, sys.excepthook)


class Hook:
    """Prints an uncaught exception as `original` does, without frames of files in a folder. To the program it looks like that."""

    def __init__(self, folder: str, original: Callable[..., object]) -> None:
        self.folder = folder
        self.original = original

    def __call__(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """Print it."""
        try:
            clean(value, self.folder, set())
            trace = value.__traceback__ if trace is not None else None
        except Exception:  # noqa: S110 - then it is printed as it is
            pass
        self.original(kind, value, trace)

    def __repr__(self) -> str:
        return repr(self.original)


def clean(error: BaseException, folder: str, seen: set[int]) -> None:
    """Take our frames out of an exception, out of those that it came from and those that it is a group of."""
    if id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = without(
        error.__traceback__, lambda trace: trace.tb_frame.f_code.co_filename.startswith(folder)
    )
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        if isinstance(other, BaseException):
            clean(other, folder, seen)


def without(trace: TracebackType | None, is_ours: Callable[[TracebackType], bool]) -> TracebackType | None:
    """Return a traceback without some entries; as it is if nothing would be left."""
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = [entry for entry in entries if not is_ours(entry)] or entries
    rest = None
    for entry in reversed(kept):
        rest = type(entry)(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest
