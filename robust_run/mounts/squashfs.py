"""A squashfs image as a file system: read by the kernel, for root of the machine, or by squashfuse_ll, in a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from robust_run.mounts import syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.table import device_number

_TOOLS = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin:/usr/local/bin"
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
