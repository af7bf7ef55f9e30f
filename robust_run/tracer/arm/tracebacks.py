"""Leaves the frames of our wrappers out of the traceback that an uncaught exception of the main thread prints, and notes when.

`sitecustomize` loads this file by its path. A program that has an `excepthook` of its own keeps it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


# Of the steps file, see robust_run.tracer.files.steps: a test keeps the two equal.
RAISED_CELL = 7


def install(folder: str, steps_file: str = "") -> None:
    """Print uncaught exceptions without frames of files in `folder`, as long as the program has nothing else in mind.

    When this very process raises one is put into its steps file: it ends by it, but that may take seconds, in which others fail.
    """
    if sys.excepthook is not sys.__excepthook__:
        return
    sys.excepthook = Hook(folder, sys.excepthook, steps_file)


class Hook:
    """Prints an uncaught exception as `original` does, without frames of files in a folder. To the program it looks like that."""

    def __init__(self, folder: str, original: Callable[..., object], steps_file: str = "") -> None:
        self.folder = folder
        self.original = original
        self.steps_file, self.pid = steps_file, os.getpid()

    def __call__(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """Print it."""
        try:
            # A program may call its hook for an exception that it has caught: that one is not the interpreter's last.
            if self.steps_file and self.pid == os.getpid() and getattr(sys, "last_value", None) is value:
                note_raised(self.steps_file)
        except Exception:  # noqa: S110 - then it is not known
            pass
        try:
            clean(value, self.folder, set())
            trace = value.__traceback__ if trace is not None else None
        except Exception:  # noqa: S110 - then it is printed as it is
            pass
        self.original(kind, value, trace)

    def __repr__(self) -> str:
        return repr(self.original)


def note_raised(steps_file: str) -> None:
    """Note that now is when an exception was raised that nobody caught. Raises OSError."""
    from struct import pack
    from time import monotonic

    descriptor = os.open(steps_file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, pack("d", monotonic()), 8 * RAISED_CELL)
    finally:
        os.close(descriptor)


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
