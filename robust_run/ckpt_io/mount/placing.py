"""The process that makes a mount where a job's workers run, and nowhere else: it lasts as long as one of them does.

    python -m robust_run.ckpt_io.mount.placing ORDER        the order as JSON; standard input is a socket to its starter

It hands out descriptors and ends: nothing but they and the programs in the namespaces keep the mount. So it is gone when those
are, however they ended, and nobody has to unmount it. Who serves it is outside, where the network and our Python are.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress

import msgspec

from robust_run.ckpt_io.mount.held_types import Placed, PlacingOrder
from robust_run.ckpt_io.mount.mounts import KIND
from robust_run.mounts import namespace, syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.table import mounts

_BOOT = "import sys; del sys.path[0]; from robust_run.ckpt_io.mount.placing import main; main(sys.argv[1])"
_TRY = "import sys; del sys.path[0]; from robust_run.ckpt_io.mount.placing import attempt; attempt()"
_DEVICE = "/dev/fuse"


def command(order: PlacingOrder) -> tuple[str, ...]:
    """Return what starts the process. No file of the folder it is started in can take the place of a module."""
    return (sys.executable, "-c", _BOOT, msgspec.json.encode(order).decode())


def trial() -> tuple[str, ...]:
    """Return what starts a process that tries, without mounting anything: exit code 0, or 1 and the reason on stderr."""
    return (sys.executable, "-c", _TRY)


def attempt() -> None:
    """Try."""
    try:
        _enter_new()
        os.close(_open_fuse())
        import mfusepy  # noqa: F401
    except ImportError as error:
        sys.exit(f"FUSE cannot be used: {error}; install fuse3 (libfuse3) and the package mfusepy")
    except (MountRefused, OSError) as error:
        sys.exit(why(error))


def why(error: Exception) -> str:
    """Return the reason, as a sentence."""
    if isinstance(error, OSError) and error.filename == _DEVICE:
        advice = (
            f"in a container: --device {_DEVICE}"
            if error.errno == errno.ENOENT
            else "ask for read and write access to it"
        )
        return f"{_DEVICE}: {os.strerror(error.errno or 0)}: FUSE is not available ({advice})"
    if isinstance(error, OSError):
        return f"{error.filename or 'the mount'}: {os.strerror(error.errno or 0)}"
    return str(error)


def main(text: str) -> None:
    """Mount, hand out, end."""
    channel = socket.socket(fileno=os.dup(0))
    order = msgspec.json.decode(text, type=PlacingOrder)
    try:
        descriptors, device = place(order)
        placed = Placed(device=device)
    except (MountRefused, OSError) as error:
        descriptors, placed = [], Placed(failed=why(error))
    with suppress(OSError):  # the starter is gone
        socket.send_fds(channel, [msgspec.json.encode(placed)], descriptors)
    os._exit(0)  # in an image there may be no more of Python's own files


def place(order: PlacingOrder) -> tuple[list[int], str]:
    """Mount; return the descriptors to hand out, and the file system's number. For a process with one thread, changed for good.

    Raises MountRefused, OSError.
    """
    if order.namespaces:
        fuse, made = _enter_theirs(order.namespaces), []
        with suppress(OSError):  # one whose server has ended
            syscalls.detach(order.point)
    else:
        made = _enter_new()
        fuse = _open_fuse()
    # The kernel checks modes; all users, as the folder is seen by this job alone. We are root of every user namespace there is.
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    flags = syscalls.READ_ONLY | syscalls.NO_SETUID | syscalls.NO_DEVICES
    syscalls.mount(KIND, order.point, source=order.source, flags=flags, options=options)
    device = next((each.device for each in reversed(mounts()) if each.point == order.point), "")
    return [fuse, *made], device


def _enter_theirs(files: tuple[str, ...]) -> int:
    """Go where workers are; return a descriptor of FUSE, which counts only in the user namespace it was opened in."""
    mount, *user = [os.open(each, os.O_RDONLY | os.O_CLOEXEC) for each in files]
    for descriptor in user:
        syscalls.enter(descriptor, syscalls.NEW_USER)
    fuse = _open_fuse()  # while our own /dev is in sight
    syscalls.enter(mount, syscalls.NEW_MOUNTS)
    return fuse


def _enter_new() -> list[int]:
    as_user = os.geteuid() != 0
    if not as_user:
        try:
            namespace.enter(as_user=False)
        except MountRefused:  # root of a container may lack the right, and have it in a user namespace
            as_user = True
    if as_user:
        namespace.enter(as_user=True)
    kinds = ("mnt", "user") if as_user else ("mnt",)
    return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]


def _open_fuse() -> int:
    return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
