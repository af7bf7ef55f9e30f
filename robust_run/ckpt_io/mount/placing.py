"""The process that makes a mount where a job's workers run, and nowhere else: it lasts as long as one of them does.

    python -m robust_run.ckpt_io.mount.placing ORDER        the order as JSON; standard input is a socket to its starter

It hands out descriptors and ends: nothing but they and the programs in the namespaces keep the mount. So it is gone when those
are, however they ended, and nobody has to unmount it. Who serves it is outside, where the network and our Python are.

Where neither root nor a user namespace may mount, fusermount3 does, which is set-uid: then all processes of this user see it,
and the launcher unmounts it at the end (`launcher.records.memory_folders`).
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress

import msgspec

from robust_run.ckpt_io.mount.held_types import WAYS, Placed, PlacingOrder, Way
from robust_run.ckpt_io.mount.mounts import KIND
from robust_run.mounts import facts, namespace, syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.ladder import POSSIBLE
from robust_run.mounts.table import mounts
from robust_run.own_process import boot

_BOOT = boot("robust_run.ckpt_io.mount.placing", "main(sys.argv[1])")
_TRY = boot("robust_run.ckpt_io.mount.placing", "attempt()", "attempt")
_DEVICE = "/dev/fuse"
_TOOL, _LIMIT_S = "fusermount3", 30.0


def command(order: PlacingOrder) -> tuple[str, ...]:
    """Return what starts the process. No file of the folder it is started in can take the place of a module."""
    return (sys.executable, "-c", _BOOT, msgspec.json.encode(order).decode())


def trial() -> tuple[str, ...]:
    """Return what starts a process that tries, without mounting anything: exit code 0, or 1 and the reason on stderr."""
    return (sys.executable, "-c", _TRY)


def attempt() -> None:
    """Try."""
    try:
        with tempfile.TemporaryDirectory() as point:
            if (way := _way(point)) == "open":
                os.close(_in_the_open(PlacingOrder(point=point, source="rrck")))
                _unmount(point)
        os.close(_open_fuse() if way != "open" else os.dup(0))
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
    elif (way := _way(order.point, order.ways)) == "open":
        return [_in_the_open(order)], _device(order.point)
    else:
        namespace.enter(as_user=way == "user")
        kinds = ("mnt", "user") if way == "user" else ("mnt",)
        made = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
        fuse = _open_fuse()
    # The kernel checks modes; all users, as the folder is seen by this job alone. We are root of every user namespace there is.
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    flags = syscalls.READ_ONLY | syscalls.NO_SETUID | syscalls.NO_DEVICES
    syscalls.mount(KIND, order.point, source=order.source, flags=flags, options=options)
    return [fuse, *made], _device(order.point)


def _device(point: str) -> str:
    return next((each.device for each in reversed(mounts()) if each.point == point), "")


def _enter_theirs(files: tuple[str, ...]) -> int:
    """Go where workers are; return a descriptor of FUSE, which counts only in the user namespace it was opened in."""
    mount, *user = [os.open(each, os.O_RDONLY | os.O_CLOEXEC) for each in files]
    for descriptor in user:
        syscalls.enter(descriptor, syscalls.NEW_USER)
    fuse = _open_fuse()  # while our own /dev is in sight
    syscalls.enter(mount, syscalls.NEW_MOUNTS)
    return fuse


def _way(point: str, ways: tuple[Way, ...] = WAYS) -> Way:
    """Return how it can be mounted, found by trying in a child: one that failed can do nothing else. Raises MountRefused."""
    reasons = []
    for way, as_user in (("root", False), ("user", True)):
        # Root of a container may lack the right, and have it in a user namespace.
        if way in ways and (as_user or os.geteuid() == 0):
            found = facts.tried(point, as_user=as_user).get("namespace", "it could not be tried")
            if found == POSSIBLE:
                return "user" if as_user else "root"
            reasons.append(found)
    if shutil.which(_TOOL) is None:
        raise MountRefused(f"{'; '.join(reasons)}; and there is no {_TOOL} (package fuse3)")
    return "open"


def _in_the_open(order: PlacingOrder) -> int:
    """Have fusermount3 mount it; return the descriptor of FUSE that it hands out. Raises MountRefused, OSError."""
    _unmount(order.point)  # one whose server has ended
    ours, theirs = socket.socketpair()
    with ours, theirs:
        options = f"ro,nosuid,nodev,fsname={order.source},subtype={KIND.partition('.')[2]},default_permissions"
        done = subprocess.run(
            [_TOOL, "-o", options, "--", order.point],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines()
            refused = facts.tried(order.point, as_user=True).get("namespace", "")
            raise MountRefused(f"{refused}; {words[-1][:200] if words else f'{_TOOL} ended with {done.returncode}'}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return descriptors[0]


def _unmount(point: str) -> None:
    subprocess.run([_TOOL, "-u", "-z", "--", point], capture_output=True, timeout=_LIMIT_S, check=False)


def _open_fuse() -> int:
    return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
