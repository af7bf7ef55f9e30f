"""Whether what this process was made of still lies on disk as it did when it started.

A job outlives its installation now and then: a newer version is put in its place, it is removed, its file system is away. What
is in memory goes on; what is started or imported from then on would be other code, or none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from robust_run.version import __version__

ROOT = os.path.dirname(os.path.abspath(__file__))

Mark = tuple[int, int, int]


def mark(path: str) -> Mark | None:
    """Return what a file that takes another's place differs in (number, time of change, size); None: it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class Installation:
    """This package in its folder, as it is now."""

    def __init__(self, folder: str = ROOT, version: str = __version__) -> None:
        self._parent = os.path.dirname(folder)
        self._file = os.path.join(folder, "version.py")
        self._version = version
        self._mark = mark(self._file)

    def change(self) -> str:
        """Return what has become of it since, as the beginning of a sentence; empty: it is as it was."""
        now = mark(self._file)
        if self._mark is None or now == self._mark:
            return ""
        if now is None:
            return f"robust-run {self._version} is not in {self._parent} any more"
        version = _version_in(self._file)
        if version == self._version:
            return f"robust-run {self._version} was installed anew in {self._parent}"
        return f"robust-run {self._version} was replaced by {version or 'another version'} in {self._parent}"


def _version_in(path: str) -> str:
    """Return what a file says that has a line `__version__ = "..."`; empty: it says nothing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(4096).splitlines()
    except OSError:
        return ""
    return next((line.split('"')[1] for line in lines if line.startswith("__version__") and line.count('"') > 1), "")


def ended_by(error: BaseException, change: str) -> str:
    """Return why a job ends that could not import or start what it needed next, after that `change` of its installation."""
    return (
        f"{change} since this job was started, and it cannot go on without what was there "
        f"({type(error).__name__}: {error}); install it and go on with robust-run --resume RUN_DIR"
    )


def replaced(marks: Mapping[str, Mark]) -> str:
    """Return the first of some files that another has taken the place of; one that cannot be seen now does not count."""
    return next((path for path, before in marks.items() if mark(path) not in (before, None)), "")


OURS = Installation()
"""That of this process."""
