"""Holding files against a listing: those of an unpacked image, or of a restored environment."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Sequence

from robust_run.snapshot.capture.stage import file_digest
from robust_run.snapshot.rules.types import Item

MOST_PROBLEMS = 20


def check_tree(tops: Sequence[str], items: Sequence[Item], *, digests: float, exact: bool) -> list[str]:
    """Return what differs, at most `MOST_PROBLEMS` lines; empty: nothing does.

    `tops`: the folder of each root. `digests`: which part of the files is read and compared, 0.0 to 1.0, chosen at random;
    kind, size and mode are compared for all. `exact`: nothing else may be there (an unpacked image, where removed names are
    not looked for); else removed names must be gone (an environment).
    """
    chosen = random.Random()  # noqa: S311 - which files are looked at is no secret
    problems: list[str] = []
    known = {(item.root, item.path) for item in items if item.kind != "w"}
    for item in items:
        if len(problems) >= MOST_PROBLEMS:
            return problems
        place = os.path.join(tops[item.root], item.path)
        if item.kind == "w":
            if not exact and (item.root, item.path) not in known and os.path.lexists(place):
                problems.append(f"{place} should have been removed")
            continue
        problem = _differs(place, item, reads=item.kind == "f" and chosen.random() < digests)
        if problem:
            problems.append(f"{place} {problem}")
    if exact:
        problems += _not_listed(tops, known)
    return problems[:MOST_PROBLEMS]


def _differs(place: str, item: Item, *, reads: bool) -> str | None:
    try:
        status = os.lstat(place)
        if item.kind == "l":
            if not stat.S_ISLNK(status.st_mode):
                return "is no symbolic link"
            return None if os.readlink(place) == item.content else f"points to {os.readlink(place)[:200]!r}"
        if item.kind == "d":
            return None if stat.S_ISDIR(status.st_mode) else "is no folder"
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if status.st_size != item.size_bytes:
            return f"has {status.st_size} bytes instead of {item.size_bytes}"
        if stat.S_IMODE(status.st_mode) != item.mode:
            return f"has mode {stat.S_IMODE(status.st_mode):o} instead of {item.mode:o}"
        if reads and file_digest(place)[0] != item.content:
            return "has other content"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _not_listed(tops: Sequence[str], known: set[tuple[int, str]]) -> list[str]:
    found = []
    for root, top in enumerate(tops):
        for folder, folders, names in os.walk(top):
            above = folder[len(top) :].lstrip("/")
            for name in (*folders, *names):
                path = f"{above}/{name}" if above else name
                if (root, path) not in known:
                    found.append(f"{os.path.join(top, path)} is not listed")
                    if len(found) >= MOST_PROBLEMS:
                        return found
    return found
