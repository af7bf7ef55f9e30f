"""The last rung: the set-up commands themselves, in the environment, once per node.

A mark in the first captured folder says that they are under way, and then that they are done and what was installed after them; a
lock lets one process in. An environment in which they were under way when they were killed is half a one: they are run again, as
installers allow; so they are where something was installed or removed since.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.atomic_file import write_file
from robust_run.snapshot.capture.running import check_codes, run_inside
from robust_run.snapshot.capture.types import CaptureOrder
from robust_run.snapshot.capture.work import make_work, remove_work
from robust_run.snapshot.errors import RestoreRefused

MARK, _LOCK = ".robust-setup.json", ".robust-setup.lock"


class EarlierRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an environment."""

    key: str
    done: bool
    installed: str = ""
    """Digest of what was installed in the environment when they were done."""


def why_not(folder: str) -> str:
    """Return why the commands cannot be run in an environment; "": they can."""
    if not os.path.isdir(folder):
        return f"{folder} is not there"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not ours to write"


def run(  # noqa: PLR0913 - the world is an argument
    commands: Sequence[str],
    *,
    key: str,
    folder: str,
    work_folder: str,
    cwd: str,
    environment: Mapping[str, str],
    python: str,
    installed: Callable[[], str] = lambda: "",
    on_output: Callable[[bytes], None] = lambda _: None,
) -> bool:
    """Run the commands unless they were run here for this key. False: they were.

    `folder`: the first captured root; `work_folder`: where a small folder can be made; `installed`: returns a digest of what is
    installed in the environment. The calling thread must live until then: the commands are killed when it ends.
    Raises `SetupFailed`, `RestoreRefused`, `SnapshotError`.
    """
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RestoreRefused(f"{folder}: the set-up cannot be run there: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = os.path.join(folder, MARK)
        if _read(mark) == EarlierRun(key=key, done=True, installed=installed()):
            return False
        _write(mark, EarlierRun(key=key, done=False))
        path = os.pathsep.join(filter(None, [os.path.dirname(python), environment.get("PATH", os.defpath)]))
        # Not enclosed: what they mount is to stay, here where nothing is captured.
        order = CaptureOrder(
            layers=(), watched=(), commands=tuple(commands), cwd=cwd, private=(), parent=os.getpid(), enclose=False
        )
        _in_work(order, work_folder, {**environment, "PATH": path, "PIP_NO_INPUT": "1"}, on_output)
        _write(mark, EarlierRun(key=key, done=True, installed=installed()))
    except OSError as error:
        raise RestoreRefused(f"{folder}: the set-up cannot be run there: {error.strerror}") from error
    finally:
        os.close(lock)
    return True


def _in_work(
    order: CaptureOrder, parent: str, environment: Mapping[str, str], on_output: Callable[[bytes], None]
) -> None:
    work = make_work(parent)
    try:
        report, last = run_inside(order, work, environment, on_output)
    finally:
        remove_work(work)
    check_codes(order, report, last)


def _read(path: str) -> EarlierRun | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(4096), type=EarlierRun)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: str, ran: EarlierRun) -> None:
    write_file(path, msgspec.json.encode(ran), draft=path + ".part", durable=True)
