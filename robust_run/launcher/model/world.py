"""The machine as an argument: environment, files, time, as one value that tests make up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from robust_run.fleet.found import Found

#: Where runs are kept, below the working folder.
RUNS_FOLDER = "robust-runs"

PathKind = Literal["missing", "forbidden", "file", "folder", "pipe", "socket", "device"]
"""What a path leads to, symbolic links followed. forbidden: a folder on the way may not be entered."""


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
    fleet: Callable[[str], Found] | None = None
    """What the newest runs of a folder of runs have left (`fleet.files.index`). Raises nothing. None: nothing has been left."""


def absolute(path: str, world: World) -> str:
    """Return `path` as an absolute one. A leading `~` is the user's home: shells leave it alone in `--log-dir=~/x`."""
    home = world.env.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    return os.path.abspath(os.path.join(world.cwd, path))


def as_text(path: str) -> str:
    """Return `path` as text that can be sent and kept, for any bytes."""
    return path.encode(errors="backslashreplace").decode()


def shown(path: str) -> str:
    """Return `path` for a message: as it is, or quoted where it would break the line."""
    return path if path.isprintable() else repr(path)


def usual_runs(cwd: str) -> str:
    """Return where runs go that are given no folder. Who makes a run and who looks for one both ask here."""
    return os.path.join(cwd, RUNS_FOLDER)


def runs_instead(cwd: str, env: Mapping[str, str], user: str) -> str:
    """Return where they go if that cannot be written. `user`: see `user_of`."""
    temporary = os.path.join(cwd, env.get("TMPDIR") or "/tmp")  # noqa: S108 - the last resort, per user
    return os.path.join(temporary, user, RUNS_FOLDER)


def user_of(env: Mapping[str, str]) -> str:
    """Return the user's name in names of folders, of letters that are safe there."""
    name = env.get("USER") or env.get("LOGNAME") or ""
    safe = "".join(letter for letter in name if letter.isalnum() or letter in "-_")
    return safe or f"uid-{os.getuid()}"


def obstacle(folder: str, files: Files) -> str:
    """Return why a folder can be neither written nor made; empty if it can."""
    at = folder
    while files.kind(at) == "missing" and at != os.path.dirname(at):
        at = os.path.dirname(at)
    kind = files.kind(at)
    if kind != "folder":
        return f"{shown(at)} may not be entered" if kind == "forbidden" else f"{shown(at)} is not a folder"
    return "" if files.access(at, os.W_OK | os.X_OK) else f"{shown(at)} is not writable"
