"""The real machine, as the `World` that checks of a command line are given."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from robust_run.errors import PlatformError
from robust_run.launcher.agent.workers.devices import ask_torch, python_of
from robust_run.launcher.model.world import PathKind, World, user_of

if TYPE_CHECKING:
    from robust_run.fleet.found import Found

#: Of a fleet's memory, each node of a job reads so much before it starts.
RUNS_AT_START = 100

_KINDS: tuple[tuple[Callable[[int], bool], PathKind], ...] = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
)


class RealFiles:
    """The machine's files, or those of a tree under `root` that stands for a machine."""

    def __init__(self, root: str = "") -> None:
        self._root = root

    def kind(self, path: str) -> PathKind:
        """See `Files`."""
        try:
            mode = os.stat(self._root + path).st_mode
        except PermissionError:
            return "forbidden"
        except (OSError, ValueError):
            return "missing"
        return next((kind for matches, kind in _KINDS if matches(mode)), "device")

    def access(self, path: str, mode: int) -> bool:
        """See `Files`."""
        try:
            return os.access(self._root + path, mode)
        except ValueError:
            return False

    def names(self, folder: str) -> tuple[str, ...]:
        """See `Files`."""
        try:
            return tuple(sorted(os.listdir(self._root + folder)))
        except (OSError, ValueError):
            return ()

    def text(self, path: str) -> str:
        """See `Files`."""
        try:
            with open(self._root + path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except (OSError, ValueError):
            return ""


def system_world(env: Mapping[str, str] | None = None) -> World:
    """Return the world as it is. Raises PlatformError if the current folder is gone."""
    env = os.environ if env is None else env
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise PlatformError(f"the current folder is gone ({error.strerror}); cd to one that exists") from None
    return World(
        env=env,
        cwd=cwd,
        executable=sys.executable,
        library_folders=tuple(sys.path),
        files=RealFiles(),
        cpu_count=_cpu_count,
        ask_torch=lambda kind: ask_torch(python_of(env, sys.executable), kind),
        user=user_of(env),
        local_time=time.localtime,
        random_hex=lambda digits: os.urandom((digits + 1) // 2).hex()[:digits],
        fleet=_fleet,
    )


def _fleet(log_dir: str) -> Found:
    from robust_run.launcher.records.fleet_index import read_trusted

    return read_trusted(log_dir, RUNS_AT_START)


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0))
