"""What this machine allows us: found by trying, in a child that ends afterwards and takes its namespace along."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import traceback
from collections.abc import Mapping

import msgspec

from robust_run.mounts import namespace, overlay, squashfs, syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.ladder import POSSIBLE, KernelFacts
from robust_run.mounts.squashfs import squashfuse_in, tool_in

_LARGEST_ANSWER_BYTES = 64 << 10


def gather(folder: str, env: Mapping[str, str]) -> KernelFacts:
    """Try what is possible. `folder`: an existing one to mount on, in the child's namespace. For a process with one thread."""
    as_root = tried(folder, as_user=False)
    as_user = {} if as_root.get("namespace") == POSSIBLE else tried(folder, as_user=True)
    better = as_root if as_root.get("namespace") == POSSIBLE else as_user
    unknown = "it could not be tried"
    return KernelFacts(
        mount_namespace=as_root.get("namespace", unknown),
        user_namespace=as_user.get("namespace", "not tried: not needed") if as_user else "not tried: root needs none",
        fuse=_fuse(),
        squashfs=as_root.get("squashfs", "only root of the machine may mount it"),
        loop=as_root.get("loop", "only root of the machine may use loop devices"),
        overlay=better.get("overlay", unknown),
        overlay_upper=better.get("overlay_upper", unknown),
        squashfuse=POSSIBLE if squashfuse_in(env) else "squashfuse_ll is not installed (squashfuse)",
        unsquashfs=POSSIBLE if tool_in(env, "unsquashfs") else "unsquashfs is not installed (squashfs-tools)",
    )


def _fuse() -> str:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    return POSSIBLE


def tried(folder: str, *, as_user: bool) -> dict[str, str]:
    """Let a child try, and return its reasons by name; {} where it could not tell. `namespace`: has one, and may mount."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reading)
            _write_all(writing, msgspec.json.encode(_try(folder, as_user=as_user)))
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = file.read(_LARGEST_ANSWER_BYTES)
    os.waitpid(child, 0)
    try:
        return msgspec.json.decode(answer, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(data)


def _try(folder: str, *, as_user: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        namespace.enter(as_user=as_user)
        syscalls.mount("tmpfs", folder, options="size=1m")
        found["namespace"] = POSSIBLE
    except (MountRefused, OSError) as error:
        return {"namespace": str(error)}
    os.chdir(folder)
    for name in ("one", "two", "upper", "work", "mounted"):
        os.mkdir(name)
    found["overlay"] = _overlay("lowerdir=one:two", as_user)
    found["overlay_upper"] = _overlay("lowerdir=one:two,upperdir=upper,workdir=work", as_user, writes=True)
    if not as_user:
        found["squashfs"] = _squashfs()
        found["loop"] = _loop()
    return found


def _overlay(options: str, as_user: bool, *, writes: bool = False) -> str:
    try:
        syscalls.mount("overlay", "mounted", options=overlay.options_for(options, as_user=as_user))
        if writes:
            os.mkdir("mounted/new")
        syscalls.detach("mounted")
    except OSError as error:
        return f"overlayfs{' in a user namespace (before Linux 5.11)' if as_user else ''}: {error.strerror}"
    return POSSIBLE


def _squashfs() -> str:
    """A mount without a device fails: with ENODEV where the kernel has no such file system, not even as a module."""
    try:
        syscalls.mount("squashfs", "mounted", flags=syscalls.READ_ONLY)
    except OSError as error:
        return "this kernel has no squashfs" if error.errno == errno.ENODEV else POSSIBLE
    return POSSIBLE


def _loop() -> str:
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            number = fcntl.ioctl(control, squashfs.GET_FREE)
        finally:
            os.close(control)
        os.close(os.open(f"/dev/loop{number}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return f"no loop device: {error.filename or '/dev/loop-control'}: {error.strerror}"
    return POSSIBLE
