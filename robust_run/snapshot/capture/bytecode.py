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

#: Said once the commands are done, as a line of theirs: it can take longer than they did.
WORDS = b"compiling what was installed"


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
        listed = write_lists(sources_in(top), os.path.join(folder, f"sources{root.folder}"))
        if listed:
            commands.append(program(listed, "-s", top, "-p", root.path))
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


def shares(sources: Iterable[tuple[str, int]], processes: int) -> list[list[str]]:
    """Deal files (path and length) to processes: as much for each, and nothing that has to be asked for again and again.

    `compileall -j` does the latter, one file at a time, which costs half as much again as the compiling.
    """
    found: list[list[str]] = [[] for _ in range(processes)]
    load = [0] * processes
    for path, size_bytes in sorted(sources, key=lambda source: (-source[1], source[0])):
        least = load.index(min(load))
        found[least].append(path)
        load[least] += size_bytes
    return [part for part in found if part]


def write_lists(sources: Iterable[tuple[str, int]], name: str, processes: int | None = None) -> list[str]:
    """Write the list of each process into a file. Returns their paths: `name` and a number. Raises OSError."""
    found = []
    for number, part in enumerate(shares(sources, processes or len(os.sched_getaffinity(0)))):
        found.append(f"{name}.{number}")
        with open(found[-1], "wb") as file:
            file.write(os.fsencode("\n".join(part)))
    return found


def program(listed: Sequence[str], *options: str) -> str:
    """Return a Python program that compiles all files of these lists, a process for each. `options`: of compileall.

    What compileall's end is does not count: sources that cannot be compiled need not be reported.
    """
    argv = ["-m", "compileall", "-qq", "-f", "--invalidation-mode", "unchecked-hash", *options, "-i"]
    return (
        "import subprocess, sys\n"
        f"each = [subprocess.Popen([sys.executable, *{argv!r}, name]) for name in {list(listed)!r}]\n"
        "for process in each: process.wait()"
    )


def sources_in(top: str) -> Iterator[tuple[str, int]]:
    """Yield the Python files that programs may import, and their lengths: no scripts, and not the tests of packages.

    Those are a quarter of all files, and are compiled by who runs them.
    """
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in ("bin", "__pycache__", "tests"))
        for name in sorted(names):
            if name.endswith(".py") and "\n" not in folder + name:
                place = os.path.join(folder, name)
                with suppress(OSError):
                    yield place, os.lstat(place).st_size
