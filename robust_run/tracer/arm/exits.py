"""Has a program's end noted by the last of its exit handlers, and remembers how it called `sys.exit`, which nobody knows by then.

`sitecustomize` loads this file by its path. Only a call on the program's outermost line is of use: further in, whoever is above
may catch what it raises.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one."""
        ...


def note_end(path: str, at_end: list[Callable[[], None]] | None) -> None:
    """Note the end in a steps file. A warm process has older handlers than ours, so it has left a place for it, `at_end`."""
    armed_pid = os.getpid()

    def note(*, is_end: bool = True) -> None:
        try:
            if is_end and os.getpid() == armed_pid and "torch" in sys.modules and "ctypes" in sys.modules:
                load("ending").note(path)
        except Exception:  # noqa: S110 - then it is not known
            pass

    if at_end is not None:
        at_end.append(note)
    elif "torch" not in sys.modules:  # the first handler is called last: by Python, unless the program runs them itself
        atexit.register(lambda: note(is_end=sys._getframe().f_back is None))
    installed.install()


class Exits:
    """What the latest call of `sys.exit` was."""

    def __init__(self) -> None:
        self.is_success = False

    def install(self) -> None:
        """See calls of `sys.exit` from now on; to the program it is as it was."""
        sys.exit = SeenExit(sys.exit, self)


class SeenExit:
    """What `sys.exit` was, which notes how it is called. No function of Python: a class that has one gives it its object."""

    def __init__(self, original: Callable[..., Any], exits: Exits) -> None:
        self._original, self._exits = original, exits
        self.__module__, self.__name__, self.__qualname__ = "sys", "exit", "exit"
        self.__doc__ = original.__doc__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Exit as ever."""
        exits = self._exits
        try:
            is_zero = not arguments or arguments[0] is None or (type(arguments[0]) is int and arguments[0] == 0)
            exits.is_success = len(arguments) < 2 and not named and is_zero and is_outermost(sys._getframe(1))
        except Exception:
            exits.is_success = False
        return self._original(*arguments, **named)

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str:
        return "exit"


def is_outermost(frame: FrameType) -> bool:
    """Whether a frame is that of the program itself: a script's, a command's, or of a module that is run by -m."""
    main = sys.modules["__main__"]
    if frame.f_code.co_name != "<module>" or frame.f_globals is not vars(main):
        return False
    above = frame.f_back
    while above is not None and above.f_globals.get("__name__") == "runpy":
        above = above.f_back
    return above is None


installed = Exits()
