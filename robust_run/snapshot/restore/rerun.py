"""The last rung: the set-up commands themselves, in the environment, once per node.

A mark in the first captured folder says that they are under way, and then that they are done; a lock lets one process in.
An environment in which they were under way when they were killed is half a one: they are run again, as installers allow.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.snapshot.capture.running import pass_on
from robust_run.snapshot.errors import RestoreRefused, SetupFailed
from robust_run.snapshot.key import blanked

MARK, _LOCK = ".robust-setup.json", ".robust-setup.lock"


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an environment."""

    key: str
    done: bool


def why_not(folder: str) -> str:
    """Return why the commands cannot be run in an environment; "": they can."""
    if not os.path.isdir(folder):
        return f"{folder} is not there"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not ours to write"


def run(
    commands: Sequence[str],
    *,
    key: str,
    folder: str,
    cwd: str,
    environment: Mapping[str, str],
    python: str,
    on_output: Callable[[bytes], None] = lambda _: None,
) -> bool:
    """Run the commands unless they were run here for this key. False: they were.

    `folder`: the first captured root. Raises `SetupFailed`, `RestoreRefused`.
    """
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RestoreRefused(f"{folder}: the set-up cannot be run there: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = os.path.join(folder, MARK)
        if _read(mark) == Ran(key=key, done=True):
            return False
        _write(mark, Ran(key=key, done=False))
        path = os.pathsep.join(filter(None, [os.path.dirname(python), environment.get("PATH", os.defpath)]))
        for command in commands:
            _one(command, cwd, {**environment, "PATH": path, "PIP_NO_INPUT": "1"}, on_output)
        _write(mark, Ran(key=key, done=True))
    except OSError as error:
        raise RestoreRefused(f"{folder}: the set-up cannot be run there: {error.strerror}") from error
    finally:
        os.close(lock)
    return True


def _one(command: str, cwd: str, environment: dict[str, str], on_output: Callable[[bytes], None]) -> None:
    last: deque[bytes] = deque(maxlen=20)
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        try:
            pass_on(process.stdout.fileno(), last, on_output)
        except BaseException:
            process.kill()
            raise
        code = process.wait()
    if code:
        said = next((line for line in reversed(last) if line.strip()), b"it wrote nothing")
        words = blanked(said.decode("utf-8", "replace").strip())[:500]
        raise SetupFailed(f"set-up command {blanked(command)[:200]!r} ended with {code}: {words}")


def _read(path: str) -> Ran | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(4096), type=Ran)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: str, ran: Ran) -> None:
    with open(path + ".part", "wb") as file:
        file.write(msgspec.json.encode(ran))
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".part", path)
