"""Which of our mounts the kernel knows, which of them nobody serves any more, and how to take one away."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Literal

from robust_run.ckpt_io.mount.types import Mount
from robust_run.errors import PlatformError

#: What the kernel calls the type of our mounts.
KIND = "fuse.rrck"
MOUNTINFO = "/proc/thread-self/mountinfo"
"""Of the thread that asks: each may have a namespace of its own."""
_MNT_DETACH = 2
_ANSWER_S = 2.0
_ESCAPED = re.compile(r"\\([0-7]{3})")

State = Literal["served", "stale", "silent"]
"""stale: its process died; silent: it does not answer."""


def ours(mountinfo: str = MOUNTINFO) -> list[Mount]:
    """Return our mounts, of all processes of this machine (or container), in the order in which they were made."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
        return [mount for line in lines if (mount := parse(line)) is not None]


def parse(line: str) -> Mount | None:
    """Read a line of mountinfo (proc(5)); None if it is of another type."""
    before, dash, after = line.partition(" - ")
    fields, kind = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(kind) < 2 or kind[0] != KIND:
        return None
    return Mount(point=_plain(fields[4]), source=_plain(kind[1]), device=fields[2])


def state_of(point: str, ask_for: Callable[[str], object] = os.statvfs) -> State:
    """Say whether a mount is served. Asking one that is silent may take two seconds, and a thread that stays behind."""
    found: list[State] = []

    def ask() -> None:
        try:
            ask_for(point)  # not stat: the kernel may remember an answer to that
            found.append("served")
        except OSError as error:
            found.append("stale" if error.errno in (errno.ENOTCONN, errno.ECONNABORTED) else "served")

    asking = threading.Thread(target=ask, daemon=True)
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
        library = ctypes.CDLL(None, use_errno=True)
        if library.umount2(os.fsencode(point), _MNT_DETACH if lazily else 0) != 0:
            number = ctypes.get_errno()
            raise PlatformError(f"{point} cannot be unmounted: {os.strerror(number)}{_advice(number == errno.EBUSY)}")
        return
    argv = [tool, "-u", *(["-z"] if lazily else []), point]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        reason = words[-1][:200] if words else f"{tool} ended with {done.returncode}"
        raise PlatformError(f"{point} cannot be unmounted: {reason}{_advice('busy' in reason)}")


def _advice(is_busy: bool) -> str:
    return "; close what is open there, or use --lazy" if is_busy else ""


def _plain(field: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), field)
