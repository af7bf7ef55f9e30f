"""A squashfs image as a file system: read by the kernel, for root of the machine, or by squashfuse_ll, in a process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from robust_run.mounts import syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.table import device_number

_TOOLS = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin:/usr/local/bin"
#: Mounting reads the first blocks, which a remote image has to fetch; without a limit a dead source would hold up the start.
_LIMIT_S = 120.0
_LOOK_EVERY_S = 0.005


def squashfuse_in(env: Mapping[str, str]) -> str | None:
    """Return the path of the best squashfuse."""
    return tool_in(env, "squashfuse_ll") or tool_in(env, "squashfuse")


def tool_in(env: Mapping[str, str], name: str) -> str | None:
    """Return the path of a program, also of one that only root has on its PATH."""
    return shutil.which(name, path=f"{env.get('PATH', '')}:{_TOOLS}")


def by_kernel(image: str, folder: str, *, offset_bytes: int = 0, limit_s: float = _LIMIT_S) -> None:
    """Mount an image file read-only, by mount(8). The loop device is given back by the kernel as soon as the mount ends.

    mount(8) looks for the device, because others look for one at the same time. Raises `MountRefused`.
    """
    tool = shutil.which("mount", path="/usr/bin:/bin:/usr/sbin:/sbin") or "/bin/mount"
    options = "ro,nodev,nosuid,loop" + (f",offset={offset_bytes}" if offset_bytes else "")
    try:
        done = subprocess.run(
            [tool, "-n", "-t", "squashfs", "-o", options, "--", image, folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MountRefused(
            f"{image}: mounting it took more than {limit_s:g} s: its first blocks do not arrive"
        ) from error
    except OSError as error:
        raise MountRefused(f"mount: {error.strerror}: install util-linux") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        raise MountRefused(f"{image}: the kernel does not mount it: {said or f'exit code {done.returncode}'}")


def by_squashfuse(
    tool: str, image: str, folder: str, *, offset_bytes: int = 0, limit_s: float = _LIMIT_S
) -> subprocess.Popen[bytes]:
    """Mount an image file and return the process that serves it. Call it where mounting is allowed, from the main thread.

    The process is killed when the thread that called this ends. Raises `MountRefused`, after which nothing is mounted.
    """
    parent = os.getpid()
    before = device_number(folder)
    offset = [f"-ooffset={offset_bytes}"] if offset_bytes else []

    def prepare() -> None:
        syscalls.die_with_parent(parent)
        syscalls.keep_right_to_mount()

    said = os.memfd_create("squashfuse")  # not a pipe, that would fill up
    try:
        process = subprocess.Popen(
            [tool, "-f", "-oro,nodev,nosuid,allow_other", *offset, image, folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            preexec_fn=prepare,  # noqa: PLW1509 - a few system calls and no lock
            start_new_session=True,
        )
        _wait(process, folder, before, limit_s)
    except (OSError, subprocess.SubprocessError) as error:
        raise MountRefused(f"{tool}: {getattr(error, 'strerror', None) or error}") from error
    except _DidNotMountError as error:
        words = " ".join(os.pread(said, 4096, 0).decode("utf-8", "replace").split())[:300]
        raise MountRefused(f"{image}: {os.path.basename(tool)} did not mount it: {words or error}") from error
    finally:
        os.close(said)
    return process


class _DidNotMountError(Exception):
    pass


def _wait(process: subprocess.Popen[bytes], folder: str, before: int | None, limit_s: float) -> None:
    """Return when something new is mounted. The table of mounts is read, not the folder: that could hang."""
    deadline_s = time.monotonic() + limit_s
    while device_number(folder) == before:
        if process.poll() is not None:
            raise _DidNotMountError(f"exit code {process.returncode}")
        if time.monotonic() > deadline_s:
            process.kill()
            process.wait()
            if device_number(folder) != before:  # it mounted at the last moment
                with contextlib.suppress(OSError):
                    syscalls.detach(folder)
            raise _DidNotMountError(f"its first blocks did not arrive within {limit_s:g} s")
        time.sleep(_LOOK_EVERY_S)


# --- An image file as a block device, and the kernel's squashfs on it: by system calls, in well under a millisecond.
#
# mount(8) does the same in 5 to 10 ms, most of which is its own start. Sources: loop(4), linux/loop.h.

GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_READ_ONLY, _GIVEN_BACK_WITH_THE_MOUNT = 1, 4
#: Others look for a free device at the same time.
_TRIES = 64


class _Config(ctypes.Structure):
    """`struct loop_config`, with `struct loop_info64` in it."""

    _fields_ = (
        ("descriptor", ctypes.c_uint32),
        ("block_bytes", ctypes.c_uint32),
        ("numbers", ctypes.c_uint64 * 5),
        ("number", ctypes.c_uint32),
        ("encryption", ctypes.c_uint32 * 2),
        ("flags", ctypes.c_uint32),
        ("file_name", ctypes.c_char * 64),
        ("rest", ctypes.c_char * 112),
        ("reserved", ctypes.c_uint64 * 8),
    )


def by_loop(image: str, folder: str) -> None:
    """Mount an image read-only. The device is given back by the kernel as soon as nothing uses the mount any more.

    Raises OSError: not root of the machine, no loop device, a kernel before 5.8, no squashfs. Nothing is mounted then.
    """
    descriptor = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        device, path = _attached(descriptor, image)
    finally:
        os.close(descriptor)
    try:
        flags = syscalls.READ_ONLY | syscalls.NO_SETUID | syscalls.NO_DEVICES
        syscalls.mount("squashfs", folder, source=path, flags=flags)
    finally:
        os.close(device)


def _attached(image: int, name: str) -> tuple[int, str]:
    """Return the descriptor of a device that shows the image, and the device's path."""
    config = _Config(descriptor=image, flags=_READ_ONLY | _GIVEN_BACK_WITH_THE_MOUNT, file_name=os.fsencode(name)[:63])
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, GET_FREE)}"
            device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
                continue
            return device, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, f"others took {_TRIES} loop devices before us", "/dev/loop-control")
