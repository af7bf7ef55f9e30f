"""Notes that the program has come to its end: from then on a crash is one of clean-up, and there is nothing to train again.

`sitecustomize` loads this file by its path when Python ends, after all exit handlers that the program has registered.

What looks the same and is not: `sys.exit(1)` of a program that has failed (its exit code is known to nobody by then), an
exception that nobody caught, exit handlers that the program itself runs before it goes on, a forked child. An end is noted only
where the stack of C shows Python's main function ending by itself, or by a SystemExit, and then only if the program has called
`sys.exit` for success on its outermost line. Of a module that is run by -m, main functions return after SystemExit, too: there
only such a call tells.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one."""
        ...


# Of the steps file, see robust_run.tracer.files.steps: a test keeps the two equal.
ENDED_CELL = 8
DEEPEST = 64
#: Who may stand between the interpreter and its main function when that ends: `Py_FinalizeEx`, and functions without a name.
FINALIZE, MAIN, INTERPRETER = "Py_FinalizeEx", "Py_RunMain", "_PyEval_EvalFrameDefault"
VECTORCALL = "_PyFunction_Vectorcall"
#: Who ends Python after SystemExit, from within what prints exceptions.
EXIT = "Py_Exit"
MOST_NAMELESS = 2


def note(steps_file: str) -> None:
    """Note that now is when the program has ended, if it is known to have. Raises OSError, and whatever ctypes does."""
    if has_raised() or waits_for_children():
        return
    by = ended_by(names_on_stack())
    if not by or ((by == EXIT or not is_script()) and not load("exits").installed.is_success):
        return
    from struct import pack
    from time import monotonic

    descriptor = os.open(steps_file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, pack("d", monotonic()), 8 * ENDED_CELL)
    finally:
        os.close(descriptor)


def has_raised() -> bool:
    """Whether an exception may have ended the program: one has, or a hook of its own would be all that knows of it."""
    hook = sys.excepthook
    is_torchs = str(getattr(hook, "__module__", "")).partition(".")[0] == "torch"  # init_process_group puts one there
    is_known = is_torchs or hook is sys.__excepthook__ or isinstance(hook, load("tracebacks").Hook)
    return not is_known or any(getattr(sys, name, None) is not None for name in ("last_value", "last_type", "last_exc"))


def is_script() -> bool:
    """Whether a file or a command is run. Of a module (-m) or a folder, main functions return after SystemExit, too."""
    main = sys.modules.get("__main__")
    return main is not None and getattr(main, "__spec__", main) is None


def waits_for_children() -> bool:
    """Whether processes that the program has started are about to be waited for: they may do its work.

    In a worker that a warm process has become, multiprocessing's exit handler is older than ours, and so comes after it.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and any(not child.daemon for child in process.active_children())


def ended_by(names: Sequence[str]) -> str:
    """Return by which of `MAIN` and `EXIT` Python ends, of functions of C, the innermost first; empty: by neither, or not known.

    After SystemExit it ends from within what prints exceptions, below what runs the program: then there are more of them.
    """
    if MAIN not in names:
        return ""
    inner = list(names[: names.index(MAIN)])
    if INTERPRETER not in inner:
        return ""
    between = [name for name in inner[len(inner) - inner[::-1].index(INTERPRETER) :] if name != VECTORCALL]
    if EXIT in between:
        return EXIT if is_nothing_but_end(between[: between.index(EXIT)]) else ""
    return MAIN if is_nothing_but_end(between) else ""


def is_nothing_but_end(names: Sequence[str]) -> bool:
    """Whether functions of C are those that Python's end calls exit handlers by."""
    return names.count("") <= MOST_NAMELESS and all(name in ("", FINALIZE) for name in names)


def names_on_stack() -> list[str]:
    """Return the names of the functions of C that run in this thread, the innermost first; empty: it has none that is public."""
    import ctypes

    class Place(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("at", ctypes.c_void_p),
        )

    library = ctypes.CDLL(None)
    addresses = (ctypes.c_void_p * DEEPEST)()
    names = []
    for address in addresses[: library.backtrace(addresses, DEEPEST)]:
        place = Place()
        found = library.dladdr(ctypes.c_void_p(address), ctypes.byref(place))
        names.append((place.name or b"").decode(errors="replace") if found else "")
    return names
