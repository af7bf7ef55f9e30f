"""Modules that are needed when something happens are imported while nothing does.

A launcher imports late what a start does not need: what judges a failure, starts the next attempt, says the last word. A job runs
for weeks, and meanwhile its installation may be replaced, removed, or be on a file system that does not answer. So processes
that live as long as a job import the rest of what they may need a while after its start, in a thread that rests most of the time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from robust_run.installation import OURS, ROOT

#: How long after the start it begins: workers import torch until then, and short jobs have no use for it.
AFTER_S = 30.0
#: The thread rests so many times the CPU that an import took: it takes a fifth of a core, for some 6 s.
REST = 4.0

PACKAGE = "robust_run"


def modules_of(rooms: Iterable[str], leave_out: Sequence[str], folder: str = ROOT) -> list[str]:
    """Return the full names of all modules of rooms (named without the package), but for what is in `leave_out`."""
    found = []
    for room in rooms:
        place = os.path.join(folder, *room.split("."))
        if os.path.isfile(f"{place}.py"):
            found.append(f"{PACKAGE}.{room}")
        for path, folders, files in os.walk(place):
            folders.sort()
            place = os.path.relpath(path, folder).replace(os.sep, ".")
            for file in sorted(files):
                stem, ending = os.path.splitext(file)
                name = place if stem == "__init__" else f"{place}.{stem}"
                if ending == ".py" and not any(name == each or name.startswith(f"{each}.") for each in leave_out):
                    found.append(f"{PACKAGE}.{name}")
    return found


def import_all(
    names: Iterable[str], rest: Callable[[float], object] = time.sleep, change: Callable[[], str] = OURS.change
) -> None:
    """Import modules one by one. One that cannot be imported is left to who needs it, and says then what is missing.

    None is imported from the moment on at which the installation has changed (`change` tells how): they would be of another
    version than the modules that are there.
    """
    for name in names:
        if name not in sys.modules:
            if change():
                return
            used_s = time.thread_time()
            try:
                __import__(name)
            except Exception:  # noqa: S112 - see above
                continue
            rest(REST * (time.thread_time() - used_s))


def begin(rooms: Iterable[str], leave_out: Sequence[str], first: Callable[[], None] | None = None) -> None:
    """Import all of some rooms beside what this process does. `first`: called before."""

    def run() -> None:
        if first is not None and not OURS.change():
            first()
        import_all(modules_of(rooms, leave_out))

    threading.Thread(target=run, name="import ahead", daemon=True).start()
