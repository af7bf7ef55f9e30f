"""Where images are unpacked on a node, who uses what, and what can go.

Memory is the better place for many small files: making them is what takes time on a disk. It is chosen where the environment is
small beside what is free. A process that uses what is unpacked holds a shared lock of the kernel's, which ends with it; what is
not used is removed from memory when something else is unpacked there. On disk it stays for the next job.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cached_property

import msgspec

from robust_run.own_folder import stranger_on_the_way
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.restore import extract
from robust_run.snapshot.rules import listing
from robust_run.snapshot.rules.types import Item, SnapshotManifest

#: An environment may take this part of the memory that is available.
_MEMORY_SHARE = 16
_USE = ".use"


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of this node, of ours alone, where images may be unpacked."""

    path: str
    is_memory: bool = False


def own_folder(path: str, *, unique: bool = False) -> str:
    """Make a folder that only we can write, and return it; `unique`: a new one in it. Raises `RestoreRefused`.

    In /var/tmp another user may have made it, or the folder above it, before us.
    """
    if stranger := stranger_on_the_way(path):
        raise RestoreRefused(f"{stranger.path}: {stranger.why}; name another cache folder")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status, above = os.lstat(path), os.stat(os.path.dirname(os.path.abspath(path)))
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise RestoreRefused(f"{path}: it is not a folder that only we can write; remove it")
        is_anybodys = above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX
        if is_anybodys or above.st_uid not in (0, os.geteuid()):
            raise RestoreRefused(
                f"{path}: others can replace it, as the folder above it is theirs; name another cache folder"
            )
        return tempfile.mkdtemp(dir=path) if unique else path
    except OSError as error:
        raise RestoreRefused(f"{path}: {error.strerror}: name another cache folder") from error


class UnpackedImage:
    """An image that is unpacked, for as long as the descriptor is open."""

    def __init__(self, path: str, manifest: SnapshotManifest, use: int) -> None:
        """Made by `unpack`. `use`: the descriptor."""
        self.path = path
        self._manifest, self._use = manifest, use

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """What lies in it; read when it is asked for, as that takes longer than a mount. Raises `SnapshotRefused`."""
        return tuple(extract.items_of(self.path, self._manifest))

    def removed(self) -> list[Item]:
        """Return the names that are to be hidden. Raises `SnapshotRefused`."""
        return listing.removed(extract.read_listing(self.path), self._manifest)

    def let_go(self) -> None:
        """Use it no more."""
        if self._use >= 0:
            os.close(self._use)
            self._use = -1


def order(folders: tuple[Folder, ...], needed_bytes: int, available_bytes: int) -> list[Folder]:
    """Return the folders to try, first choice first: memory if there is plenty, then disk, then memory all the same. Pure."""
    plenty = needed_bytes * _MEMORY_SHARE <= available_bytes
    return sorted(folders, key=lambda folder: folder.is_memory != plenty)


def available_memory(table: str = "/proc/meminfo") -> int:
    """Return how many bytes of memory programs could still have; 0 where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError), open(table, encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def unpack(manifest: SnapshotManifest, image: str, folders: tuple[Folder, ...]) -> UnpackedImage:
    """Unpack an image into the best folder that can hold it. Raises `RestoreRefused`, `SnapshotRefused`."""
    problems = []
    for folder in order(folders, manifest.content_bytes, available_memory()):
        target = os.path.join(folder.path, "unpacked", manifest.image_sha256)
        use = -1
        try:
            use = _using(target)
            if folder.is_memory:
                sweep(folder.path, keep=manifest.image_sha256)
            path = extract.extract(manifest, image, folder.path)
            return UnpackedImage(path, manifest, use)
        except BaseException as error:
            if use >= 0:
                os.close(use)
            if not isinstance(error, RestoreRefused):
                raise
            problems.append(str(error))
    raise RestoreRefused("; ".join(problems) or "there is no folder to unpack it in")


def sweep(folder: str, keep: str = "") -> list[str]:
    """Remove what is unpacked in a folder and used by no process, and return the names."""
    removed = []
    top = os.path.join(folder, "unpacked")
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(top)):
            if len(name) != 64 or name == keep:
                continue
            with suppress(OSError):  # a process uses it, or removes it
                use = _using(os.path.join(top, name), fcntl.LOCK_EX)
                shutil.rmtree(os.path.join(top, name), ignore_errors=True)
                os.close(use)
                removed.append(name)
    return removed


def _using(target: str, kind: int = fcntl.LOCK_SH) -> int:
    """Lock what is or will be unpacked, and return the descriptor. Raises OSError; `RestoreRefused` for a user."""
    try:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        descriptor = os.open(target + _USE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RestoreRefused(f"{target}: {error.strerror}: name another cache folder") from error
    try:
        fcntl.flock(descriptor, kind | (fcntl.LOCK_NB if kind == fcntl.LOCK_EX else 0))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
