"""What the checks of a command line may know of the machine, as one value that tests make up."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from robust_run.errors import PlatformError

PathKind = Literal["missing", "forbidden", "file", "folder", "pipe", "socket", "device"]
"""What a path leads to, symbolic links followed. forbidden: a folder on the way may not be entered."""

_KINDS: tuple[tuple[Callable[[int], bool], PathKind], ...] = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
)


class Files(Protocol):
    """Questions to a file system. None raises for a path that is missing or forbidden. Paths are absolute."""

    def kind(self, path: str) -> PathKind:
        """What the path leads to."""
        ...

    def access(self, path: str, mode: int) -> bool:
        """Whether this process may do what `mode` says (`os.R_OK` and its like)."""
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the sorted names in a folder; none if it cannot be listed."""
        ...

    def text(self, path: str) -> str:
        """Return what a small file says; empty if it cannot be read."""
        ...


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


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, the user and the moment a command line is checked against."""

    env: Mapping[str, str]
    cwd: str
    executable: str
    """The Python interpreter that runs us."""
    library_folders: tuple[str, ...]
    """Where that interpreter looks for packages."""
    files: Files
    cpu_count: Callable[[], int]
    """CPUs this process may run on."""
    ask_torch: Callable[[str], int]
    """Counts devices of a kind (`gpu`, `xpu`, `auto`) in a Python with torch, in about a second. Raises UserError."""
    user: str
    """For names of folders; made of letters that are safe there."""
    local_time: Callable[[], time.struct_time]
    random_hex: Callable[[int], str]
    """Random hexadecimal digits, as many as asked for."""


def system_world(env: Mapping[str, str] | None = None) -> World:
    """Return the world as it is. Raises PlatformError if the current folder is gone."""
    import sys

    from robust_run.launcher.devices import ask_torch, python_of

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
        user=_user(env),
        local_time=time.localtime,
        random_hex=lambda digits: os.urandom((digits + 1) // 2).hex()[:digits],
    )


def absolute(path: str, world: World) -> str:
    """Return `path` as an absolute one. A leading `~` is the user's home: shells leave it alone in `--log-dir=~/x`."""
    home = world.env.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    return os.path.abspath(os.path.join(world.cwd, path))


def shown(path: str) -> str:
    """Return `path` for a message: as it is, or quoted where it would break the line."""
    return path if path.isprintable() else repr(path)


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0))


def _user(env: Mapping[str, str]) -> str:
    name = env.get("USER") or env.get("LOGNAME") or ""
    safe = "".join(letter for letter in name if letter.isalnum() or letter in "-_")
    return safe or f"uid-{os.getuid()}"
