"""The lists of environments: whose they are, where they lie, and what a launch adds to them.

The rules are those of hot lists (`mount.plain`): what was read has weight 1, what was not has half of what it had, and drops out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence

from robust_run.atomic_file import write_file
from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.mount import plain
from robust_run.prefetch.mount.plain import HotFiles

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
            data = file.read(plain.LARGEST_RECORDING_BYTES + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path}: {error.strerror or error}"
    try:
        return plain.decode(data, path), ""
    except HotListRefused as error:
        return None, str(error)


def noted(notes: Iterable[str], root: str, mapped: Sequence[str] = (), *, at_ms: int = 0) -> list[dict[str, int]]:
    """Return what workers' notes say of one folder, a recording each. `mapped`: files seen from outside, last at `at_ms`."""
    recordings = []
    names = spellings((root,))
    for path in notes:
        found: dict[str, int] = {}
        for name in names:
            found |= {file: ms for file, ms in plain.read_recording(path, name).items() if file not in found}
        recordings.append(found)
    below = (file.removeprefix(f"{name}/") for name in names for file in mapped if file.startswith(f"{name}/"))
    recordings.append({file: at_ms for file in below if ".." not in file.split("/")})
    return recordings


def record(path: str, recordings: Sequence[Mapping[str, int]]) -> HotFiles | None:
    """Merge what a launch opened into a list; None where it opened nothing. Raises OSError where it cannot be written."""
    if not any(recordings):
        return None
    old, _problem = load(path)
    new = plain.merged(old, [dict(each) for each in recordings])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_file(path, plain.encode(new), mode=0o600, durable=True)
    return new
