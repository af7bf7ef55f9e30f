"""Bytecode that is valid with any time stamps: compiled once here, so that no restore pays for it.

The usual kind is bound to its source's time stamp, which a snapshot does not keep; "unchecked-hash" (PEP 552) is not looked at.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from robust_run.snapshot.capture.running import Heard, run_inside
from robust_run.snapshot.capture.types import CaptureOrder
from robust_run.snapshot.errors import SnapshotError
from robust_run.snapshot.rules.types import Root


def drop_orphans(top: str) -> int:
    """Remove bytecode whose source is not in the same tree: it was written by running what was there before. Returns how many."""
    count = 0
    for folder, _, names in os.walk(top, topdown=False):
        if os.path.basename(folder) != "__pycache__":
            continue
        for name in names:
            place = os.path.join(folder, name)
            if name.endswith(".pyc") and not _has_source(place):
                os.unlink(place)
                count += 1
        if not os.listdir(folder):
            os.rmdir(folder)
            _drop_empty(os.path.dirname(folder), top)
    return count


def _drop_empty(folder: str, top: str) -> None:
    """Folders that hold nothing now were made, or copied up, for that bytecode alone."""
    while folder != top and not os.listdir(folder):
        os.rmdir(folder)
        folder = os.path.dirname(folder)


def _has_source(place: str) -> bool:
    try:
        return os.path.exists(importlib.util.source_from_cache(place))
    except ValueError:
        return True  # not as Python names it: a data file


def compile_all(
    stage: str,
    roots: Iterable[Root],
    python: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float = 1800.0,
) -> None:
    """Compile all sources in the stage with the interpreter they are for. Sources of another Python's syntax are passed over.

    The bytecode says where the file will be, not where it is now. Hash seeds are fixed, so that it is the same each time.
    """
    quiet = {**environment, "PYTHONHASHSEED": "0"}
    quiet.pop("PYTHONDONTWRITEBYTECODE", None)
    folder = os.path.dirname(stage)
    commands = []
    for root in roots:
        top = os.path.join(stage, f"r{root.folder}")
        sources = "\n".join(sources_in(top))
        if not sources:
            continue
        listed = os.path.join(folder, f"sources{root.folder}")
        with open(listed, "wb") as file:
            file.write(os.fsencode(sources))
        argv = [
            "-qq",
            "-f",
            "--invalidation-mode",
            "unchecked-hash",
            "-j",
            "0",
            "-s",
            top,
            "-p",
            root.path,
            "-i",
            listed,
        ]
        # What `main` returns is no exit code here: sources that cannot be compiled need not be reported.
        commands.append(f"import compileall, sys; sys.argv[1:] = {argv!r}; compileall.main()")
    # In the process in which commands run, so that its processes end with this one.
    order = CaptureOrder(
        layers=(), watched=(), commands=tuple(commands), cwd="/", private=(), parent=os.getpid(), shell=python[0]
    )
    give_up_at_s = time.monotonic() + timeout_s

    def check() -> None:
        if time.monotonic() > give_up_at_s:
            raise SnapshotError(f"compiling took longer than {timeout_s:g} s")

    with suppress(OSError, SnapshotError):  # slower imports, nothing wrong
        run_inside(order, folder, quiet, Heard(lambda _: None, check))


def sources_in(top: str) -> Iterator[str]:
    """Yield the Python files below a folder, but scripts."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in ("bin", "__pycache__"))
        for name in sorted(names):
            if name.endswith(".py") and "\n" not in folder + name:
                yield os.path.join(folder, name)
