"""Removing compiled objects that no job has used for long: each version of the plugin and of the recorder in C leaves its own.

When something is built, what was last used more than `KEPT_S` before that goes, but for the newest `FEWEST` of each kind. Use is
noted on the object itself (its mtime, `build.mark`) by each attempt that takes it.

- A job that has one loaded keeps it: a file that is removed lives on as long as it is mapped.
- A job that is about to load one has marked it when its attempt began. If it is gone in spite of that (clocks that are months
  apart, a folder that does not take marks), calls are recorded in Python and NCCL is not traced until a later attempt has built
  it anew, which takes a second. Nothing else comes of it.
- Nodes that share the folder see one mtime, and ages are told by the mtime of the object just made: no node's clock counts.
- Only regular files of this user, with names that only we give, are touched.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import NamedTuple

#: Not used for so long before another was built.
KEPT_S = 90 * 24 * 3600.0
#: Of each kind that are kept, however old: versions, Pythons and machines of one home.
FEWEST = 4
_OURS = re.compile(r"(nccl-plugin|robust_run_native)-[0-9a-f]{16}[-.][\w.-]*?(?:\.so|\.so\.bad)")


class KeptObject(NamedTuple):
    """A compiled object, or the note that it is bad."""

    name: str
    kind: str
    used_s: float


def outdated(found: list[KeptObject], built_s: float) -> list[str]:
    """Return the names of what goes when something was built at `built_s`. Pure."""
    names: list[str] = []
    for kind in {each.kind for each in found}:
        newest_first = sorted((each for each in found if each.kind == kind), key=lambda each: -each.used_s)
        names += [each.name for each in newest_first[FEWEST:] if built_s - each.used_s > KEPT_S]
    return sorted(names)


def prune(built: str) -> None:
    """Remove what is outdated beside an object that was just built. Never raises."""
    folder = os.path.dirname(built)
    with suppress(OSError):
        for name in outdated(_objects(folder), os.lstat(built).st_mtime):
            with suppress(FileNotFoundError):  # another job does the same
                os.unlink(os.path.join(folder, name))


def _objects(folder: str) -> list[KeptObject]:
    found = []
    for name in os.listdir(folder):
        ours = _OURS.fullmatch(name)
        if ours is None:
            continue
        with suppress(FileNotFoundError):
            about = os.lstat(os.path.join(folder, name))
            if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
                found.append(KeptObject(name, ours[1], about.st_mtime))
    return found
