"""Which of our mounts the kernel knows, which of them no process serves any more, and how to take one away."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Literal

from robust_run.errors import PlatformError
from robust_run.mounts.table import TABLE, Mount, mounts

#: What the kernel calls the type of our mounts.
KIND = "fuse.rrck"
_ANSWER_S = 2.0

State = Literal["served", "stale", "silent"]
"""stale: its process died; silent: it does not answer."""


def ours(mountinfo: str = TABLE) -> list[Mount]:
    """Return our mounts, of all processes of this machine (or container), in the order in which they were made."""
    return [mount for mount in mounts(mountinfo) if mount.kind == KIND]


def state_of(point: str, ask_for: Callable[[str], object] = os.statvfs) -> State:
    """Say whether a mount is served. Asking one that is silent may take two seconds, and a thread that stays behind."""
    found: list[State] = []

    def ask() -> None:
        try:
            ask_for(point)  # not stat: the kernel may remember an answer to that
            found.append("served")
        except OSError as error:
            found.append("stale" if error.errno in (errno.ENOTCONN, errno.ECONNABORTED) else "served")

    asking = threading.Thread(target=ask, daemon=True)  # a call to a silent mount never returns
    asking.start()
    asking.join(_ANSWER_S)
    return found[0] if found else "silent"


def clear_stale(point: str | None = None) -> list[Mount]:
    """Take away mounts whose process was killed, all or the one at a point, and return them; those of others are left."""
    cleared = []
    for mount in ours():
        if point in (None, mount.point) and state_of(mount.point) == "stale":
            try:
                unmount(mount.point, lazily=True)
            except PlatformError:
                continue
            cleared.append(mount)
    return cleared


def unmount(point: str, *, lazily: bool = False) -> None:
    """Take a mount away; lazily: also one that is in use, which ends for good when its last file is closed.

    Raises:
        PlatformError: It is in use, or not ours to take away.
    """
    tool = shutil.which("fusermount3") or shutil.which("fusermount")
    if os.getuid() == 0 or tool is None:
        from robust_run.mounts import syscalls

        try:
            syscalls.unmount(point, syscalls.DETACH if lazily else 0)
        except OSError as error:
            why = f"{error.strerror}{_advice(error.errno == errno.EBUSY)}"
            raise PlatformError(f"{point} cannot be unmounted: {why}") from error
        return
    argv = [tool, "-u", *(["-z"] if lazily else []), point]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        reason = words[-1][:200] if words else f"{tool} ended with {done.returncode}"
        raise PlatformError(f"{point} cannot be unmounted: {reason}{_advice('busy' in reason)}")


def _advice(is_busy: bool) -> str:
    return "; close what is open there, or use --lazy" if is_busy else ""
