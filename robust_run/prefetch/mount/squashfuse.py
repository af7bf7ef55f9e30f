"""squashfuse_ll on an image file: a process that serves the file system, for as long as its starter lives."""

from __future__ import annotations

import os
import subprocess
import time

from robust_run.prefetch.errors import MountRefused
from robust_run.prefetch.mount import syscalls
from robust_run.prefetch.server.mounting import device_number

_LIMIT_S = 120.0
_LOOK_EVERY_S = 0.005


def mount_squashfs(
    tool: str, image: str, folder: str, *, offset_bytes: int = 0, limit_s: float = _LIMIT_S
) -> subprocess.Popen[bytes]:
    """Mount an image file and return the process that serves it. Call it where mounting is allowed, from the main thread.

    The process is killed when the thread that called this ends. Raises `MountRefused`.
    """
    parent = os.getpid()
    before = device_number(folder)
    offset = [f"-ooffset={offset_bytes}"] if offset_bytes else []
    said = os.memfd_create("squashfuse")  # not a pipe, that would fill up
    try:
        process = subprocess.Popen(
            [tool, "-f", "-oro,nodev,nosuid,allow_other", *offset, image, folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            preexec_fn=lambda: syscalls.die_with_parent(parent),  # noqa: PLW1509 - it takes no lock
        )
        _wait(process, folder, before, limit_s)
    except OSError as error:
        raise MountRefused(f"{tool}: {error.strerror}") from error
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
            raise _DidNotMountError(f"its first blocks did not arrive within {limit_s:g} s")
        time.sleep(_LOOK_EVERY_S)
