"""What a warm process has imported, as it lies on disk: workers made of it import the rest from there, and it must fit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from robust_run.installation import OURS, Mark, mark, replaced

#: Folders of installed packages. What lies elsewhere may be the job's code: its workers run that from a copy, whatever is edited.
INSTALLED = frozenset(("site-packages", "dist-packages"))


class OnDisk:
    """The installed packages of some modules, as they lie where this process finds them."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        self._marks: dict[str, Mark] = {}
        for name in dict.fromkeys(each.partition(".")[0] for each in modules):
            if (path := _file_of(name)) and (seen := mark(path)):
                self._names[path], self._marks[path] = name, seen

    def change(self) -> str:
        """Return which package was replaced since; empty: none. One that cannot be seen now is in memory all the same."""
        path = replaced(self._marks)
        return f"{self._names[path]} was replaced on disk since the warm process imported it" if path else ""


def why_no_new_one() -> str:
    """Return why no warm process can be started now; empty: it can.

    It would be of another version than this agent; or, where nothing of robust-run is left, Python would find nothing that stops
    it before the program, and run that as a second rank.
    """
    change = OURS.change()
    return f"{change} since this job was started" if change else ""


def _file_of(name: str) -> str:
    """Return the file of a top-level module, without importing it; empty: it is built in, not installed, or not to be found."""
    try:
        specs = (finder.find_spec(name, None) for finder in sys.meta_path)
        spec = next((each for each in specs if each is not None), None)
    except Exception:  # whatever finders there are
        return ""
    path = spec.origin if spec is not None and spec.has_location and spec.origin else ""
    return path if INSTALLED.intersection(path.split(os.sep)) else ""
