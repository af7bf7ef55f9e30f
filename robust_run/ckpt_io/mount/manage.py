"""Mounting and unmounting from outside: starts the process that serves, and sees that none is left behind."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

import msgspec

from robust_run.ckpt_io.mount.mounts import clear_stale, ours, state_of, unmount
from robust_run.ckpt_io.mount.types import MountOptions, ServingReady
from robust_run.errors import PlatformError, UserError
from robust_run.own_process import boot

_BOOT = boot("robust_run.ckpt_io.mount.serve", "sys.exit(main(sys.argv))")
START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
DEVICE = "/dev/fuse"


@dataclass
class ServedMount:
    """A mount, and the process that serves it. As a context manager it is unmounted at the end."""

    options: MountOptions
    process: subprocess.Popen[bytes]

    @property
    def point(self) -> str:
        """The folder where it is seen."""
        return self.options.point

    def close(self) -> None:
        """Unmount and wait for the process. Raises PlatformError if it does not end within 15 s; it is killed then."""
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            if self.process.stdin is not None:
                self.process.stdin.close()
        if any(mount.point == self.point for mount in ours()):
            unmount(self.point, lazily=True)

    def __enter__(self) -> ServedMount:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def mount(options: MountOptions, say: Callable[[str], None], log: IO[bytes] | None = None) -> ServedMount:
    """Mount, and return when it can be used. `say` is told of stale mounts that were cleared; `log` takes what the process says.

    Raises:
        UserError: The mount point is no empty folder, or something is mounted there.
        PlatformError: FUSE cannot be used here, or the checkpoint cannot be read; why is said.
    """
    check_device()
    for stale in clear_stale(options.point):
        say(f"{stale.point} was mounted by a process that was killed; unmounted it")
    check_point(options.point)
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, msgspec.json.encode(options).decode()],
            stdin=subprocess.PIPE if options.lifeline else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log if log is not None else words,
            start_new_session=True,
        )
        try:
            wait_until_served(process, options.point, f"is {options.url} reachable?", words)
        except BaseException:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
            if any(each.point == options.point for each in ours()):
                unmount(options.point, lazily=True)
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
    if not options.direct_io:
        widen_read_ahead(options.point, options.read_ahead_bytes)
    return ServedMount(options, process)


def widen_read_ahead(point: str, size_bytes: int) -> None:
    """Let the kernel ask for more at once. Only after the first answer: the kernel sets its own value before that."""
    try:
        os.stat(point)
        device = next((each.device for each in ours() if each.point == point), "")
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as setting:
            setting.write(str(size_bytes >> 10))
    except OSError:
        pass  # not root: the kernel asks for 128 KiB at a time


def stop(point: str, *, lazily: bool = False) -> None:
    """Unmount; the process ends by itself. Raises UserError if it is no mount of ours, PlatformError if it is in use."""
    path = os.path.realpath(os.path.dirname(os.path.abspath(point)))
    path = os.path.join(path, os.path.basename(os.path.abspath(point)))  # the point itself may be dead
    if not any(each.point == path for each in ours()):
        raise UserError(f"{point}: no checkpoints are mounted there; robust ckpt mount --list lists the mounts")
    unmount(path, lazily=lazily or state_of(path) != "served")


def check_device(device: str = DEVICE) -> None:
    """Raise PlatformError if there is no FUSE here, or not for us."""
    if not os.path.exists(device):
        raise PlatformError(
            f"there is no {device}: FUSE is not available (in a container: --device {device} --cap-add SYS_ADMIN)"
        )
    if not os.access(device, os.R_OK | os.W_OK):
        raise PlatformError(f"{device} may not be opened by this user: ask for read and write access to it")


def check_point(point: str) -> None:
    """Raise UserError unless a folder can be mounted on; it is made if it is not there."""
    if any(each.point == point for each in ours()):
        raise UserError(f"{point}: checkpoints are mounted there already; robust ckpt unmount takes them away")
    try:
        os.makedirs(point, exist_ok=True)
        if os.listdir(point):
            raise UserError(f"{point} is not empty: choose an empty folder to mount on")
    except OSError as error:
        raise UserError(f"{point} cannot be mounted on: {error.strerror}") from error


def wait_until_served(process: subprocess.Popen[bytes], point: str, advice: str, words: IO[bytes]) -> None:
    """Wait until it serves, as it says in a line. Raises PlatformError if it does not; `words`: what it said on stderr."""
    assert process.stdout is not None
    line, until_s = b"", time.monotonic() + START_LIMIT_S
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, until_s - time.monotonic()))
        if not readable:
            raise PlatformError(f"{point}: not mounted within {START_LIMIT_S:g} s; {advice}")
        data = os.read(process.stdout.fileno(), 4096)
        if not data:
            break
        line += data
    try:
        ready = msgspec.json.decode(line, type=ServingReady)
    except msgspec.MsgspecError:
        ready = ServingReady(
            pid=0, error=_last_words(words) or f"the process that serves ended with {process.wait(STOP_LIMIT_S)}"
        )
    if ready.error:
        raise PlatformError(f"{point} not mounted: {_with(ready.error, _last_words(words))}")


def _with(reason: str, words: str) -> str:
    return reason.replace("its own words are above", words or "it did not say why")


def _last_words(words: IO[bytes]) -> str:
    words.seek(0)
    lines = words.read(65536).decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
