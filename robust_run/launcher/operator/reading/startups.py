"""Reads how the runs of many folders started. What cannot be read is named with its reason, and hides no other run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from robust_run.errors import PlatformError
from robust_run.launcher.operator.reading.runs import is_run
from robust_run.report.files import startup as startup_file
from robust_run.report.startup.profile import ProfileFold
from robust_run.report.startup.profile_types import StartProfile, UnreadRun

_ATTEMPT = re.compile(r"attempt_[0-9]+")


def read_profile(folders: Sequence[str]) -> StartProfile:
    """Return how the runs started that these are, or that lie in these folders. One that is named twice counts once."""
    fold = ProfileFold()
    seen: set[str] = set()
    for folder in folders:
        try:
            paths = list(_runs(os.path.abspath(folder)))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            fold.leave_out(UnreadRun(path=folder, kind="not reached", why=why))
            continue
        if not paths:
            fold.leave_out(UnreadRun(path=folder, kind="not reached", why="no run is in it"))
        for path in paths:
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                _add(fold, path)
    return fold.profile([os.path.abspath(folder) for folder in folders if "\0" not in folder])


def _runs(folder: str) -> Iterator[str]:
    """Yield a folder that is a run, or the runs in it, by name. Raises OSError, and ValueError for what is no path."""
    if _is_left_by_run(folder, deep=False):
        yield folder
        return
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    yield from (path for name in names if _is_left_by_run(path := os.path.join(folder, name), deep=True))


def _is_left_by_run(path: str, *, deep: bool) -> bool:
    """Whether a run left this folder. `deep`: also where only a node without the controller has."""
    if is_run(path) or os.path.lexists(os.path.join(path, startup_file.NAME)):
        return True
    try:
        return deep and any(_ATTEMPT.fullmatch(name) for name in os.listdir(path))
    except OSError:
        return True  # whose that is cannot be seen; it is named


def _add(fold: ProfileFold, path: str) -> None:
    try:
        startup = startup_file.read(os.path.join(path, startup_file.NAME))
    except startup_file.OtherVersionError as error:
        fold.leave_out(UnreadRun(path=path, kind="other version", why=str(error)))
    except PlatformError as error:
        fold.leave_out(UnreadRun(path=path, kind="damaged", why=str(error)))
    else:
        if startup is None:
            fold.leave_out(UnreadRun(path=path, kind="not timed", why="there is no startup.json"))
        else:
            fold.add(path, startup)
