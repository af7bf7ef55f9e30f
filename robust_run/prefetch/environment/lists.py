"""The lists of environments: which files starts read of them, whose they are, where they lie, and what a launch adds to them.

The same machinery as for blocks, by file: what a start opened (`environment.arm`) is merged over ranks and launches, decays when
it is not seen, and is read in the order of its first use, many files at once. The rules are those of hot lists: what was read has
weight 1, what was not has half of what it had, and drops out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.mount import warm
from robust_run.prefetch.rules.hotlist import DECAY, LEAST_WEIGHT

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
    """Return the list in a file's bytes. Raises `HotListRefused` for all that can be wrong with it."""
    try:
        if len(data) > LARGEST_RECORDING_BYTES:
            raise ValueError(f"{len(data)} bytes; at most {LARGEST_RECORDING_BYTES} are read")
        hot = json_decoder(HotFiles).decode(data)
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


_LARGEST_CONFIG_BYTES = 64 << 10


def default_folder(env: Mapping[str, str]) -> str | None:
    """Return where lists lie: in the user's cache, which all nodes share where homes are shared. None: there is no home."""
    cache = env.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = env.get("HOME", "")
        if not os.path.isabs(home):
            return None
        cache = os.path.join(home, ".cache")
    return os.path.join(cache, "robust-run", "environments")


def roots_of(python: str) -> tuple[str, ...]:
    """Return the folders of an interpreter's environment: its own, and that of the Python that it was made of.

    `python` is the absolute path that is started, its links not followed. Folders of the system are left out: they are not
    what is slow.
    """
    own = os.path.dirname(os.path.dirname(os.path.normpath(python)))
    found = [own]
    with (
        contextlib.suppress(OSError),
        open(os.path.join(own, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file,
    ):
        for line in file.read(_LARGEST_CONFIG_BYTES).splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip() == "home" and value.strip().startswith("/"):
                found.append(os.path.dirname(os.path.normpath(value.strip())))
    return tuple(dict.fromkeys(root for root in found if root not in ("/", "/usr", "/usr/local")))


def spellings(roots: Iterable[str]) -> tuple[str, ...]:
    """Return the folders as they are named and as they really are: Python opens by the one, the kernel tells the other."""
    return tuple(dict.fromkeys(name for root in roots for name in (os.path.abspath(root), os.path.realpath(root))))


def place(folder: str, root: str, launch: str, machine: str) -> str:
    """Return the file of an environment's list."""
    text = "\0".join(("robust-run environment 1", os.path.realpath(root), launch, machine))
    return os.path.join(folder, f"{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json")


def load(path: str) -> tuple[HotFiles | None, str]:
    """Return a list, None where there is none, and what is wrong with it, "" for nothing."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_RECORDING_BYTES + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path}: {error.strerror or error}"
    try:
        return decode(data, path), ""
    except HotListRefused as error:
        return None, str(error)


def noted(notes: Iterable[str], root: str, mapped: Sequence[str] = (), *, at_ms: int = 0) -> list[dict[str, int]]:
    """Return what workers' notes say of one folder, a recording each. `mapped`: files seen from outside, last at `at_ms`."""
    recordings = []
    names = spellings((root,))
    for path in notes:
        found: dict[str, int] = {}
        for name in names:
            found |= {file: ms for file, ms in read_recording(path, name).items() if file not in found}
        recordings.append(found)
    below = (file.removeprefix(f"{name}/") for name in names for file in mapped if file.startswith(f"{name}/"))
    recordings.append({file: at_ms for file in below if ".." not in file.split("/")})
    return recordings


def record(path: str, recordings: Sequence[Mapping[str, int]]) -> HotFiles | None:
    """Merge what a launch opened into a list; None where it opened nothing. Raises OSError where it cannot be written."""
    if not any(recordings):
        return None
    old, _problem = load(path)
    new = merged(old, [dict(each) for each in recordings])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_file(path, encode(new), mode=0o600, durable=True)
    return new
