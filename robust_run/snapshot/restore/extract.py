"""Restoring by unpacking: the image's files into a folder of this node, all of them or none.

`unsquashfs` unpacks, on all processors, into a new folder that it cannot leave (Landlock; without that, only a version that
refuses names with "/" and ".."). What it wrote is held against the listing, file by file; then comes the mark that all is
there, then the final name. A process that is killed leaves an unused folder, which the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from robust_run.atomic_file import write_file
from robust_run.snapshot.errors import RestoreRefused, SnapshotRefused
from robust_run.snapshot.pack import tool_path, tool_version
from robust_run.snapshot.restore import confined
from robust_run.snapshot.rules import listing
from robust_run.snapshot.rules.types import Item, SnapshotManifest
from robust_run.snapshot.verify import check_tree

MARK = "done.json"
#: The first that refuses names which leave the folder.
_SAFE_VERSION = (4, 5, 1)
_BLOCK_BYTES = 4096
_BOOT = "/proc/sys/kernel/random/boot_id"


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """That all of it is there."""

    image_sha256: str
    boot: str
    """Of the boot in which it was written: after another, what was not yet on the disk may be lost."""


def extract(
    manifest: SnapshotManifest,
    image: str,
    cache: str,
    *,
    processors: int | None = None,
    which: Callable[[str], str | None] = shutil.which,
    boot_file: str = _BOOT,
    timeout_s: float = 7200.0,
) -> str:
    """Return the folder with `r0`, `r1`... of an image that has been verified; unpacked once per node.

    Raises `SnapshotRefused` where it is not what the manifest says, `RestoreRefused` (no room, no unsquashfs).
    """
    target = os.path.join(cache, "unpacked", manifest.image_sha256)
    boot = _boot(boot_file)
    try:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        with alone_on_node(target + ".lock"):
            if _is_done(target, manifest, boot):
                return target
            _sweep(target)
            part = f"{target}.{uuid.uuid4().hex}.part"
            try:
                _check_room(os.path.dirname(target), manifest)
                _unpack(manifest, image, part, processors, which, timeout_s)
                _mark(part, manifest, boot)
                os.rename(part, target)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    except OSError as error:
        raise RestoreRefused(f"{target}: {error.strerror or error}: name another cache folder") from error
    return target


def items_of(folder: str, manifest: SnapshotManifest) -> list[Item]:
    """Return the listing that lies in a folder or mount. Raises `SnapshotRefused`."""
    return listing.decode(read_listing(folder), manifest)


def read_listing(folder: str) -> bytes:
    """Return the bytes of the listing in a folder or mount. Raises `SnapshotRefused`."""
    try:
        descriptor = os.open(os.path.join(folder, listing.NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read(listing.LARGEST_BYTES + 1)
    except OSError as error:
        raise SnapshotRefused(f"{folder}: its {listing.NAME} cannot be read: {error.strerror}") from error


def _unpack(
    manifest: SnapshotManifest,
    image: str,
    part: str,
    processors: int | None,
    which: Callable[[str], str | None],
    timeout_s: float,
) -> None:
    tool = tool_path("unsquashfs", which)
    os.mkdir(part, 0o700)
    inner = os.path.join(part, "files")
    confine = confined.writes_below(part)
    if confine is None and tool_version(tool) < _SAFE_VERSION:
        raise RestoreRefused(
            f"{tool} is older than {'.'.join(map(str, _SAFE_VERSION))} and could write anywhere: update it"
        )
    wanted = [listing.NAME, *(f"r{root.folder}" for root in manifest.roots if root.changed)]
    argv = [tool, "-quiet", "-no-progress", "-no-xattrs", "-d", inner]
    argv += ["-processors", str(processors)] if processors else []
    try:
        done = subprocess.run(
            [*argv, os.path.abspath(image), *wanted],
            cwd=part,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            preexec_fn=confine,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RestoreRefused(f"{image}: unsquashfs cannot be run to its end: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SnapshotRefused(
            f"{image}: unsquashfs ended with {done.returncode}: {(said or ['it said nothing'])[-1][:300]}"
        )
    _check_unpacked(manifest, inner, image)
    for name in wanted:
        os.rename(os.path.join(inner, name), os.path.join(part, name))
    os.rmdir(inner)
    os.chmod(part, 0o755)  # noqa: S103 - packages, which all may read


def _check_unpacked(manifest: SnapshotManifest, folder: str, image: str) -> None:
    items = items_of(folder, manifest)
    tops = [os.path.join(folder, f"r{root.folder}") for root in manifest.roots]
    problems = check_tree(tops, items, digests=0.0, exact=True)
    expected = {listing.NAME, *(f"r{root.folder}" for root in manifest.roots if root.changed)}
    problems += [f"{name!r} is not listed" for name in sorted(set(os.listdir(folder)) - expected)]
    if problems:
        raise SnapshotRefused(f"{image}: it does not hold what its listing says: {problems[0]}; build it again")


def _is_done(target: str, manifest: SnapshotManifest, boot: str) -> bool:
    try:
        with open(os.path.join(target, MARK), "rb") as file:
            mark = msgspec.json.decode(file.read(4096), type=_Mark)
        if mark.image_sha256 != manifest.image_sha256:
            return False
        if mark.boot == boot:
            return True
        tops = [os.path.join(target, f"r{root.folder}") for root in manifest.roots]
        if check_tree(tops, items_of(target, manifest), digests=1.0, exact=True):
            return False
        _mark(target, manifest, boot)
    except (OSError, msgspec.MsgspecError, SnapshotRefused):
        return False
    return True


def _mark(folder: str, manifest: SnapshotManifest, boot: str) -> None:
    mark = _Mark(image_sha256=manifest.image_sha256, boot=boot)
    write_file(os.path.join(folder, MARK), msgspec.json.encode(mark))


def _check_room(folder: str, manifest: SnapshotManifest) -> None:
    status = os.statvfs(folder)
    needed = manifest.content_bytes + manifest.items * _BLOCK_BYTES
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise RestoreRefused(
            f"{folder}: {needed} bytes are needed to unpack, {free} are free: name another cache folder"
        )


def _sweep(target: str) -> None:
    """Remove what is not whole: ours under the final name, and what processes left that were killed. We hold the lock."""
    folder, name = os.path.split(target)
    for item in list(os.scandir(folder)):
        if item.name == name or (item.name.startswith(name + ".") and item.name.endswith(".part")):
            shutil.rmtree(item.path, ignore_errors=True)


def _boot(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(100).strip()
    except OSError:
        return ""


@contextmanager
def alone_on_node(path: str) -> Iterator[None]:
    """One process of this node at a time. The kernel gives the lock back when its holder is killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
