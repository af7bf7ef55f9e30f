"""Running a test in a mount namespace of its own, so that whatever happens to it no mount is left.

Linux keeps the namespace per thread, so a thread is enough; processes and threads started from it inherit it. The namespace ends,
with all its mounts, when the last of them does.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_NEW_MOUNTS, _RECURSIVE_PRIVATE = 0x00020000, 0x4000 | 0x40000


def privately(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a private mount namespace; skip it where we may not have one, or there is no /dev/fuse."""

    @functools.wraps(test)
    def run(*args: Any, **keywords: Any) -> None:
        failure: list[BaseException] = []

        def within() -> None:
            try:
                _enter()
                test(*args, **keywords)
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=within)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]

    return run


def _enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is not there for us")
    if libc.unshare(_NEW_MOUNTS):
        pytest.skip(f"no private mount namespace: {os.strerror(ctypes.get_errno())}")
    assert not libc.mount(None, b"/", None, _RECURSIVE_PRIVATE, None)


def may_all_use_fuse() -> bool:
    """Whether every user may open /dev/fuse: on fresh machines it may be root's alone."""
    return not os.path.exists("/dev/fuse") or stat.S_IMODE(os.stat("/dev/fuse").st_mode) & 0o006 == 0o006


def give_fuse_to_all(folder: Path) -> None:
    """Have a /dev/fuse that every user may open, in this mount namespace."""
    if may_all_use_fuse():
        return
    devices = folder / "devices"
    devices.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "dev", "tmpfs", str(devices)], check=True, timeout=20)
        os.mknod(devices / "fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
        os.chmod(devices / "fuse", 0o666)  # whatever the umask
        subprocess.run(["mount", "--bind", str(devices / "fuse"), "/dev/fuse"], check=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"/dev/fuse cannot be given to other users here: {error}")


_WITH_FUSE = (
    'set -e; mode=$1; shift; folder=$(mktemp -d); mount -t tmpfs -o dev none "$folder"; mknod "$folder/fuse" c 10 229; '
    'chmod "$mode" "$folder/fuse"; mount --bind "$folder/fuse" /dev/fuse; umount -l "$folder"; rmdir "$folder"; exec "$@"'
)


@functools.cache
def fuse_for_all() -> tuple[str, ...]:
    """Return the beginning of an argv of root's: what follows runs where every user may open /dev/fuse. Same pid."""
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0 or may_all_use_fuse():
        return ()
    begin = _with_fuse(unshare, "666")
    return () if subprocess.run([*begin, "true"], capture_output=True, timeout=60, check=False).returncode else begin


def _with_fuse(unshare: str, mode: str) -> tuple[str, ...]:
    return (unshare, "--mount", "--propagation", "private", "sh", "-c", _WITH_FUSE, "sh", mode)


def fuse_for_root_alone() -> tuple[str, ...]:
    """Return the beginning of an argv of root's: what follows runs where no other user may open /dev/fuse. Same pid."""
    return _with_fuse(shutil.which("unshare") or "unshare", "600")
