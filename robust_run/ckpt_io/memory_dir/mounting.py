"""A folder in memory from outside: whether there can be one, its process, and that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress

from robust_run.ckpt_io.memory_dir.process import command
from robust_run.ckpt_io.memory_dir.types import MemoryDirOptions
from robust_run.ckpt_io.mount.manage import check_device, check_point, wait_until_served, widen_read_ahead
from robust_run.ckpt_io.mount.mounts import clear_stale, ours, unmount
from robust_run.errors import PlatformError, UserError

STOP_LIMIT_S, KILL_LIMIT_S = 15.0, 5.0
_READ_AHEAD_BYTES = 4 << 20
_ADVICE = "is the machine busy, or the folder below it on storage that hangs?"


def check(options: MemoryDirOptions, say: Callable[[str], None]) -> None:
    """Clear what a killed job left, and see whether there can be such a folder; it is made if it is not there.

    Raises:
        UserError: It has files, or is mounted on, or one of the two folders lies in the other.
        PlatformError: There is no FUSE here.
    """
    check_device()
    for stale in clear_stale(options.point):
        say(f"{stale.point} was mounted by a job that was killed; unmounted it")
    below = os.path.realpath(options.storage) if options.storage else ""
    point = os.path.realpath(options.point)
    if below and (f"{point}/".startswith(f"{below}/") or f"{below}/".startswith(f"{point}/")):
        raise UserError(
            f"--ckpt-memory-dir {options.point} and --ckpt-dir {options.storage}: one lies in the other; name another"
        )
    try:
        check_point(point)
    except UserError as error:
        raise UserError(f"--ckpt-memory-dir: {error}") from error


def start(options: MemoryDirOptions, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process and return when the folder can be used. Raises PlatformError."""
    with tempfile.TemporaryFile() as words:
        try:
            process = subprocess.Popen(
                command(options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                env=dict(env),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise PlatformError(f"{options.point} not mounted: no process can be started: {error.strerror}") from error
        try:
            wait_until_served(process, options.point, _ADVICE, words)
        except BaseException:
            stop(process, options.point)
            assert process.stdout is not None
            process.stdout.close()
            raise
    widen_read_ahead(options.point, _READ_AHEAD_BYTES)
    return process


def stop(process: subprocess.Popen[bytes], point: str) -> None:
    """End the process, which unmounts; what is left of the mount is taken away. Who reads what it says reads on to the end."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs in storage
            process.wait(KILL_LIMIT_S)
    take_away(point)


def take_away(point: str) -> None:
    """Take away a mount that no process serves any more, if there is one. Never raises: the next job there clears it, too."""
    try:
        if any(each.point == point for each in ours()):
            unmount(point, lazily=True)
    except (PlatformError, OSError):
        return
