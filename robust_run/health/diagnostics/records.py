"""The file in which a fleet's history is kept: read with limits, replaced as a whole, under a lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError, UserError
from robust_run.health.checks.history import History
from robust_run.health.diagnostics.program import one_line

#: A file of 2,000 series of 200 values is smaller.
MOST_FILE_BYTES = 32 << 20


def default_path(env: Mapping[str, str]) -> str:
    """Return where the history of this user's checks is."""
    base = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME") or "/", ".local", "state")
    return os.path.join(base, "robust-run", "checks.json")


def load(path: str) -> History:
    """Return the history; an empty one where there is no file. Raises UserError for a file that is something else."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        return History()
    except IsADirectoryError as error:
        raise UserError(f"the history {path} is a folder; name a file with --history") from error
    except OSError as error:
        raise PlatformError(f"cannot read the history {path}: {error.strerror}; name another with --history") from error
    if len(data) > MOST_FILE_BYTES:
        raise UserError(
            f"{path} is longer than {MOST_FILE_BYTES >> 20} MiB: no history of checks; name another with --history"
        )
    try:
        return msgspec.json.decode(data, type=History)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{path} is no history of checks ({one_line(str(error))}); name another with --history"
        ) from error


def change(path: str, changed: Callable[[History], History]) -> History:
    """Replace the history by what `changed` makes of it, and return that. Raises PlatformError if it cannot be written."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path + ".lock", "a", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = changed(load(path))
            write_file(path, msgspec.json.encode(made), mode=0o600, durable=True)
    except OSError as error:
        raise PlatformError(
            f"cannot write the history {path}: {error.strerror}; name another with --history"
        ) from error
    return made
