"""No image at all: the files of a Python environment on a slow shared file system, those that a start reads read ahead.

The same machinery as for blocks, by file: what a start opened (`environment.arm`) is merged over ranks and launches, decays when
it is not seen, and is read in the order of its first use, many files at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Literal

import msgspec

from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.hotlist import DECAY, LEAST_WEIGHT
from robust_run.prefetch.mount import warm

LARGEST_RECORDING_BYTES = 64 << 20
MOST_FILES = 200_000
#: Of one file: what a start reads of a library is much less, but where in it is not known.
LARGEST_FILE_BYTES = 512 << 20


class HotFile(msgspec.Struct, frozen=True, array_like=True):
    """One file that starts read."""

    path: str
    """Below the environment's folder."""
    first_touch_ms: int
    weight: float
    """1.0: read in the latest launch; halved for each launch since that did not."""


class HotFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What starts of a program read of an environment."""

    schema: Literal["robust-hot-files"] = "robust-hot-files"
    version: Literal[1] = 1
    launches: int
    files: tuple[HotFile, ...]


def read_recording(path: str, root: str) -> dict[str, int]:
    """Return what a worker opened below a folder: path below it → milliseconds of the first time. {} for what is no recording."""
    prefix = os.path.abspath(root) + os.sep
    found: dict[str, int] = {}
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_RECORDING_BYTES)
    except OSError:
        return {}
    for line in data.decode("utf-8", "surrogateescape").split("\n")[:MOST_FILES]:
        first_ms, tab, opened = line.partition("\t")
        below = opened.removeprefix(prefix)
        sound = tab and opened != below and first_ms.isdecimal() and len(first_ms) < 12 and _is_below(below)
        # Python asks for files that are not there, too.
        if sound and below not in found and os.path.isfile(opened):
            found[below] = int(first_ms)
    return found


def merged(old: HotFiles | None, recordings: Iterable[dict[str, int]]) -> HotFiles:
    """Return the list after one more launch, of which there are recordings of several ranks. Pure."""
    files: dict[str, tuple[int, float]] = {}
    for recording in recordings:
        for path, first_ms in recording.items():
            if path not in files or first_ms < files[path][0]:
                files[path] = (first_ms, 1.0)
    for file in old.files if old else ():
        if file.path not in files and file.weight * DECAY >= LEAST_WEIGHT:
            files[file.path] = (file.first_touch_ms, file.weight * DECAY)
    order = sorted(files, key=lambda path: (files[path][0], path))[:MOST_FILES]
    return HotFiles(
        launches=(old.launches if old else 0) + 1, files=tuple(HotFile(path, *files[path]) for path in order)
    )


def encode(hot: HotFiles) -> bytes:
    """Return the list's file: JSON with a line per file. Names that are no UTF-8 are left out."""
    head = msgspec.json.encode(msgspec.structs.replace(hot, files=()))
    rows = b",\n".join(msgspec.json.encode(file) for file in hot.files if _is_text(file.path))
    return head.removesuffix(b"]}") + (b"\n" + rows + b"\n" if rows else b"") + b"]}\n"


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def decode(data: bytes, name: str = "hot files") -> HotFiles:
    """Return the list in a file's bytes. Raises `HotListRefused` for whatever is wrong with it."""
    try:
        if len(data) > LARGEST_RECORDING_BYTES:
            raise ValueError(f"{len(data)} bytes; at most {LARGEST_RECORDING_BYTES} are read")
        hot = msgspec.json.decode(data, type=HotFiles)
        bad = next((file for file in hot.files if not _is_sound(file)), None)
        if bad is not None or len(hot.files) > MOST_FILES or not 0 <= hot.launches <= 1 << 40:
            raise ValueError(f"{bad.path[:80]!r} cannot be" if bad else "it is too long")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HotListRefused(
            f"{name}: {' '.join(str(error).split())[:300]}; the next launch records a new one"
        ) from error
    return hot


def _is_sound(file: HotFile) -> bool:
    return _is_below(file.path) and 0 <= file.first_touch_ms <= 1 << 40 and 0.0 < file.weight <= 1.0


def _is_below(path: str) -> bool:
    return 0 < len(path) <= 4096 and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def warm_files(root: str, hot: HotFiles, *, width: int = warm.WIDTH, stop: threading.Event | None = None) -> int:
    """Read the hot files of an environment into the page cache, the first read first; return how many bytes came."""
    paths = ((os.path.join(root, file.path), LARGEST_FILE_BYTES) for file in hot.files)
    return warm.read_files(paths, width=width, stop=stop)
