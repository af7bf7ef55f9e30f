"""Overlays (overlayfs), and what is special in their layers."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from robust_run.mounts import syscalls
from robust_run.mounts.errors import MountRefused


def options_for(options: str, *, as_user: bool) -> str:
    """Return the options for an overlay; in a user namespace it must keep its notes in attributes of users."""
    return f"{options},userxattr" if as_user else options


def mount(
    target: str, layers: Sequence[str], *, upper: str | None = None, work: str | None = None, userns: bool
) -> None:
    """Mount an overlay at a folder: the first layer is the uppermost; with an upper and a work folder it can be written.

    All paths are given as /proc/self/fd/N: no name can be mistaken for an option, and no link be changed meanwhile.
    Raises `MountRefused`.
    """
    descriptors: list[int] = []
    numbers: list[str] = []
    try:
        for path in (target, *layers, *([upper, work] if upper and work else [])):
            descriptors.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            numbers.append(f"/proc/self/fd/{descriptors[-1]}")
        count = len(layers)
        options = [f"lowerdir={':'.join(numbers[1 : 1 + count])}"]
        if upper and work:
            options += [f"upperdir={numbers[1 + count]}", f"workdir={numbers[2 + count]}"]
        options += [] if userns else ["redirect_dir=off", "metacopy=off", "index=off"]
        syscalls.mount(
            "overlay", numbers[0], source="robust-snapshot", flags=0 if upper else syscalls.READ_ONLY,
            options=options_for(",".join(options), as_user=userns),
        )  # fmt: skip
    except OSError as error:
        why = "its file system may not allow it" if error.filename in numbers else error.filename
        raise MountRefused(f"{target}: no overlay can be mounted there: {error.strerror}: {why}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def make_whiteout(path: str) -> bool:
    """Make what hides a name of the layers below. False: this kernel does not let us (before 5.8 only root could)."""
    try:
        os.mknod(path, stat.S_IFCHR, 0)
    except OSError:
        return False
    return True


def is_whiteout(status: os.stat_result) -> bool:
    """Whether this is what an overlay writes for a name that was removed."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
