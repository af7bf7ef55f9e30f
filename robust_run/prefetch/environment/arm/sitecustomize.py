"""Runs at the start of a worker's interpreter, before the user's program: notes which files of its environment Python opens.

The launcher puts this folder on the worker's PYTHONPATH, after the tracer's own (see `robust_run.prefetch.environment`).
It first undoes that, then adds an audit hook (PEP 578), and hands over to the user's `sitecustomize`. Each file is a line in a
file that the launcher has made, written at once: a worker may be killed at any time. What the dynamic linker maps, the launcher
sees from outside.

It imports nothing but what every Python has loaded by now, and nothing of robust_run. No exception of ours reaches the program.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_FILES = 100_000


def undo_arming() -> str:
    """Restore path and environment as they were before the launcher armed us, and return what it wants."""
    folder = os.path.dirname(__file__)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    original = os.environ.pop("ROBUST_ENV_PYTHONPATH", None)
    if original:  # "=" and the value; only "" where there was none
        os.environ["PYTHONPATH"] = original[1:]
    elif original is not None:
        os.environ.pop("PYTHONPATH", None)
    return os.environ.pop("ROBUST_ENV_RECORD", "")


def note_files(wanted: str) -> None:
    """Note files from now on. `wanted`: seconds, the file for the notes, and the folders whose files count, a line each."""
    seconds, output, *roots = wanted.split("\n")
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    prefixes = tuple(root.rstrip("/") + "/" for root in roots if root.startswith("/"))
    began_s, limit_s = monotonic(), float(seconds)
    pid, seen = os.getpid(), set()  # type: tuple[int, set[str]]
    state = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not state[0] or event not in ("open", "import", "ctypes.dlopen"):
            return
        try:
            path = arguments[1] if event == "import" else arguments[0]
            if not isinstance(path, str) or path in seen or not path.startswith(prefixes):
                return
            passed_s = monotonic() - began_s
            if passed_s > limit_s or len(seen) >= MOST_FILES or os.getpid() != pid:
                state[0] = False
                return
            seen.add(path)
            if "\n" not in path:
                os.write(descriptor, f"{int(passed_s * 1000)}\t{path}\n".encode("utf-8", "surrogateescape"))
        except Exception:
            state[0] = False  # a record is a hint; the program is what matters

    for module in list(sys.modules.values()):  # what `site` has imported before us
        hook("open", (getattr(module, "__cached__", None),))
    sys.addaudithook(hook)


def give_up(reason: Exception) -> None:
    """Say that nothing is noted."""
    try:
        sys.stderr.write(f"robust-run: --prefetch-env is off in this worker: {type(reason).__name__}: {reason}\n")
        sys.stderr.flush()
    except Exception:  # noqa: S110 - a worker without stderr has no place to say it
        pass


def arm() -> None:
    """Undo the launcher's changes and note files, if it asked for that."""
    try:
        wanted = undo_arming()
        if wanted:
            note_files(wanted)
    except Exception as error:
        give_up(error)


if __name__ == "sitecustomize":
    arm()
    # Hand over: `site` gets the user's module or the user's exception; with neither, the ImportError that it expects.
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")
