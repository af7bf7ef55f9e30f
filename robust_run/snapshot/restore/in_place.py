"""Restoring without any mount: what was unpacked is copied over the roots, at the same paths.

A mark in the first root says that it is under way, and then that it is done. Who finds it under way does all of it again, which
gives the same; who finds another snapshot's refuses. Files are replaced by renames, so no reader sees half of one.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from robust_run.atomic_file import write_file
from robust_run.mounts import table
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.rules.manifest import is_of_image
from robust_run.snapshot.rules.types import Item, SnapshotManifest
from robust_run.store.digests import digest

MARK = ".robust-snapshot.json"
_PART = ".robust-part"
_THREADS = 4
#: What a container writes to: gone with it, and no other container's.
_OWN_FILE_SYSTEMS = frozenset(("overlay", "tmpfs", "ramfs"))


class CopiedMark(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied into an environment."""

    image_sha256: str
    key: str
    state: Literal["copying", "done"]


def why_not(folder: str, mounts: str = table.TABLE) -> str:
    """Return why nothing is copied into an environment; "": it is ours, and of a container that ends with its file system."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is not ours to write"
    kind = file_system_of(os.path.realpath(folder), mounts)
    return "" if kind in _OWN_FILE_SYSTEMS else f"{folder} is on {kind or 'an unknown file system'}: others may use it"


def file_system_of(path: str, mounts: str) -> str:
    """Return the kind of file system that a path is on; "": unknown."""
    mount = table.mount_of(path, table.mounts(mounts))
    return mount.kind if mount is not None else ""


def state_of(manifest: SnapshotManifest) -> Literal["none", "copying", "done"]:
    """Return how far this snapshot is in its roots. Raises `RestoreRefused` where another one is in them."""
    path = _mark_path(manifest)
    try:
        with open(path, "rb") as file:
            mark = msgspec.json.decode(file.read(4096), type=CopiedMark)
    except FileNotFoundError:
        return "none"
    except (OSError, msgspec.MsgspecError) as error:
        raise RestoreRefused(f"{path}: it cannot be read: {error}; make the environment anew") from error
    if mark.image_sha256 != manifest.image_sha256:
        raise RestoreRefused(f"{path}: snapshot {mark.key[:16]} was copied into this environment before; make it anew")
    return mark.state


def copy_over(manifest: SnapshotManifest, items: Sequence[Item], unpacked: str) -> None:
    """Copy an unpacked image over its roots. Raises `RestoreRefused`; what is half done is then marked so."""
    if is_of_image(manifest):
        raise RestoreRefused("it was built inside an image, and belongs nowhere else")
    if state_of(manifest) == "done":
        return
    for root in manifest.roots:
        if not os.path.isdir(root.path) or not os.access(root.path, os.W_OK | os.X_OK):
            raise RestoreRefused(f"{root.path}: it is no folder that we may write")
    try:
        _write_mark(manifest, "copying")
        for item in items:
            if item.kind == "w":
                _remove(manifest.roots[item.root].path, item.path)
        for item in items:
            if item.kind == "d":
                _folder(os.path.join(manifest.roots[item.root].path, item.path), item.mode)
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(
                lambda item: _file(manifest, item, unpacked), [item for item in items if item.kind in "fl"]
            ):
                pass
        _write_mark(manifest, "done")
    except OSError as error:
        raise RestoreRefused(f"{error.filename or manifest.roots[0].path}: {error.strerror or error}") from error


def _file(manifest: SnapshotManifest, item: Item, unpacked: str) -> None:
    """Put one file or link in its place. All folders above it are listed, and so are real folders by now."""
    root = manifest.roots[item.root]
    target = os.path.join(root.path, item.path)
    folder, name = os.path.split(target)
    part = os.path.join(folder, f"{_PART}-{digest(name.encode()).hex()}")
    if os.path.isdir(target) and not os.path.islink(target):
        shutil.rmtree(target)
    _unlink(part)
    if item.kind == "l":
        os.symlink(item.content, part)
    else:
        shutil.copyfile(os.path.join(unpacked, f"r{root.folder}", item.path), part, follow_symlinks=False)
        os.chmod(part, item.mode)
    os.rename(part, os.path.join(folder, name))


def _folder(path: str, mode: int) -> None:
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            os.mkdir(path, mode)
    except FileNotFoundError:
        os.mkdir(path, mode)
    os.chmod(path, mode)


def _remove(root: str, path: str) -> None:
    """Remove a name; not through a symbolic link, which could lead out of the root."""
    place = root
    parts = path.split("/")
    for part in parts[:-1]:
        place = os.path.join(place, part)
        if os.path.islink(place) or not os.path.isdir(place):
            return
    place = os.path.join(place, parts[-1])
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    else:
        _unlink(place)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _mark_path(manifest: SnapshotManifest) -> str:
    return os.path.join(manifest.roots[0].path, MARK)


def _write_mark(manifest: SnapshotManifest, state: Literal["copying", "done"]) -> None:
    path = _mark_path(manifest)
    mark = CopiedMark(image_sha256=manifest.image_sha256, key=manifest.key, state=state)
    write_file(path, msgspec.json.encode(mark), draft=path + ".part", durable=True)
