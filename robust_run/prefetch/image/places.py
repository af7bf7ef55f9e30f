"""Where a path leads inside a folder that acts as a root: symbolic links are followed within it and nowhere else.

For folders that no other process writes while we look: a rootfs being built in a private folder, or a read-only image.
"""

from __future__ import annotations

import os

MOST_LINKS = 40
LONGEST_PATH = 4096


class NoPlaceError(ValueError):
    """A path that leads nowhere inside the root: too many links, too long, or through something that is no folder."""


def resolve(root: str, path: str, *, follow_last: bool = True) -> str:
    """Return the path below `root` that `path` means when `root` is "/": relative, "" for the root itself, and free of links.

    What does not exist stays as it is. `..` above the root is the root. Raises `NoPlaceError`.
    """
    left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    done: list[str] = []
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            del done[-1:]
            continue
        here = os.path.join(root, *done, part)
        if len(here) - len(root) > LONGEST_PATH or "\0" in part:
            raise NoPlaceError(f"{path[:80]!r} is longer than {LONGEST_PATH} or holds a zero byte")
        if os.path.islink(here) and (left or follow_last):
            links += 1
            target = os.readlink(here)
            if links > MOST_LINKS:
                raise NoPlaceError(f"{path[:80]!r} leads through more than {MOST_LINKS} symbolic links")
            if target.startswith("/"):
                done.clear()
            left.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
            if len(left) > LONGEST_PATH:
                raise NoPlaceError(f"{path[:80]!r} leads through links that are too long")
            continue
        done.append(part)
    return "/".join(done)
