"""Runs at the start of a warm process, in place of the user's `sitecustomize` (see `robust_run.launcher.agent.warm.start_up`).

Undoes what made Python import it and calls the function that ROBUST_WARM names. When that returns, this process is a worker:
the user's `sitecustomize` is imported, as in any worker, or the tracer's before it, and the user's program follows.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def undo_start() -> list[str]:
    """Restore path and environment as a worker's program would find them, and return the words of ROBUST_WARM."""
    folder = os.path.dirname(__file__)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    original = os.environ.pop("ROBUST_ARM_PYTHONPATH", None)
    if original:
        os.environ["PYTHONPATH"] = original[1:]
    elif original is not None:
        os.environ.pop("PYTHONPATH", None)
    return os.environ.pop("ROBUST_WARM").split(" ")


def imported(name: str, library: str) -> Any:
    """Return a module of robust_run. From `library` (a folder; "": from where Python finds it), nobody else sees it or its like.

    What is imported later, by us or the program, comes from where the program finds it: all that is needed must be loaded now.
    """
    if not library:
        return __import__(name, fromlist=["*"])
    mine = ("robust_run", "msgspec")
    theirs = {each: sys.modules.pop(each) for each in list(sys.modules) if each.partition(".")[0] in mine}
    sys.path.insert(0, library)
    try:
        return __import__(name, fromlist=["*"])
    finally:
        sys.path.remove(library)
        sys.path_importer_cache.pop(library, None)
        for each in [each for each in sys.modules if each.partition(".")[0] in mine]:
            del sys.modules[each]
        sys.modules.update(theirs)


def warm(name: str, *arguments: str) -> None:
    """Call the warm process's function. Any failure ends this process: it must never run the user's program."""
    done, library = False, os.environ.pop("ROBUST_WARM_LIBRARY", "")
    # Importers in other threads must not wait for these two, whose import ends only when this process is a worker.
    waiting = [sys.modules[module].__spec__ for module in ("site", "sitecustomize")]
    try:
        import threading  # noqa: F401 - whichever thread imports it first is its main thread

        for spec in waiting:
            spec._initializing = False  # type: ignore[union-attr]
        module_name, _, function = name.partition(":")
        getattr(imported(module_name, library), function)(*arguments)
        for spec in waiting:
            spec._initializing = True  # type: ignore[union-attr]
        done = True
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stderr.write(f"robust-run: the warm process failed: {text}\n")
        sys.stderr.flush()
    finally:
        if not done:
            os._exit(70)


def call_last() -> list[Any]:
    """Return a list; what the worker puts there is called after the exit handlers of all that is imported from now on.

    The first handler that is registered is called last, unless the program runs its handlers itself.
    """
    at_end: list[Any] = []

    def call() -> None:
        if sys._getframe().f_back is None:
            for each in at_end:
                each()

    atexit.register(call)
    return at_end


if __name__ == "sitecustomize":
    sys._robust_run_at_end = call_last()  # type: ignore[attr-defined]  # the tracer takes it away again
    warm(*undo_start())
    if "ROBUST_ARM_PYTHONPATH" in os.environ:  # armed, as a worker that started from nothing would be
        sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
    else:
        del sys._robust_run_at_end  # type: ignore[attr-defined]
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")
