"""Applying the tar layers of an image to a folder, one above the other, without leaving it. Needs no root.

A layer is hostile until shown otherwise. Paths are resolved inside the folder, the way a container's kernel would; the last part
is never followed; counts and bytes are limited, also of what compressed data becomes. Whiteouts as in the OCI image
specification, layer.md: `.wh.NAME` removes NAME of the layers below, `.wh..wh..opq` empties its folder of them.

Times of modification are the layers', or 0 where they name none, never of the unpacking: an image of them is the same each time.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, cast

from robust_run.prefetch.image.errors import ImageRefused
from robust_run.prefetch.image.places import NoPlaceError, resolve
from robust_run.prefetch.image.unpacking import ForwardReader, Packing, unpacked

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_COPY_BYTES = 1 << 20
#: Folders in each other. What removes a tree recurses, and a thousand are too deep for Python's own.
_DEEPEST = 200
#: Between an entry's data is read and written this much disk must stay free.
_KEEP_FREE_BYTES = 64 << 20
_CHECK_FREE_EVERY_BYTES = 64 << 20
#: squashfs has 32 bits for a time, in seconds.
_LATEST_S = (1 << 32) - 1


@dataclass(frozen=True)
class LayerLimits:
    """What all layers of an image together may come to."""

    bytes: int = 1 << 40
    entries: int = 10_000_000


class Extraction:
    """One image's folder while its layers are applied to it. Use from one thread; nobody else may write the folder."""

    def __init__(self, folder: str, limits: LayerLimits) -> None:
        self.folder = os.path.realpath(folder)
        self.bytes = 0
        """Of all files written."""
        self.entries = 0
        self.left_out = 0
        """Devices, pipes and sockets: containers get them from their host."""
        self._limits = limits
        self._of_this_layer: set[str] = set()
        self._folders: dict[str, tuple[int, int]] = {"": (0o755, 0)}
        """Their modes and times."""
        self._places: dict[str, str] = {"": ""}
        self._check_free_at = 0

    def apply(
        self,
        file: IO[bytes],
        packing: Packing,
        sha256: str,
        size_bytes: int,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Apply one layer. `sha256` and `size_bytes`: of the file as it is stored.

        Raises `ImageRefused` where it is not that file, is no tar, wants out, or cannot be written.
        """
        self._of_this_layer = set()
        reader = ForwardReader(unpacked(file, packing, size_bytes, progress))
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r:", errorlevel=2, encoding="utf-8") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
                    self._one(tar, member)
            reader.finish(sha256)
        except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError, OSError) as error:
            raise ImageRefused(f"layer {sha256[:12]}: {' '.join(str(error).split())[:200] or 'damaged'}") from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file of ours into the root, in place of any other."""
        self._make_way(name, is_folder=False)
        self._write_file(name, [data], 0o644, 0)

    def finish(self) -> None:
        """Give folders their modes and times; last, so that a folder that may not be written could be filled."""
        for path in sorted(self._folders, key=len, reverse=True):
            whole = os.path.join(self.folder, path)
            if os.path.isdir(whole) and not os.path.islink(whole):
                mode, time_s = self._folders[path]
                os.chmod(whole, mode)
                os.utime(whole, (time_s, time_s))

    def _one(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self.entries += 1
        if self.entries > self._limits.entries:
            raise ImageRefused(f"more than {self._limits.entries} entries in its layers; that many are not unpacked")
        above, name = self._place(member.name)
        if name.startswith(_WHITEOUT):
            self._whiteout(above, name)
            return
        path = f"{above}/{name}" if above else name
        if not name:
            self._folders[""] = (member.mode & 0o1777 | 0o700, _time_s(member))
        elif member.isdir():
            self._add_folder(path, member.mode, _time_s(member))
        elif member.issym():
            self._make_way(path, is_folder=False)
            whole = os.path.join(self.folder, path)
            os.symlink(member.linkname, whole)
            os.utime(whole, (_time_s(member), _time_s(member)), follow_symlinks=False)
            self._places = {"": ""}
        elif member.islnk():
            self._add_hard_link(path, member.linkname)
        elif member.isreg():
            self._add_file(tar, member, path)
        else:
            self.left_out += 1
            return
        self._of_this_layer.add(path)

    def _place(self, name: str) -> tuple[str, str]:
        """Return the folder of an entry, without links and made if it is missing, and the entry's own name; "" for the root."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in name or len(name) > 4096:
            raise ImageRefused(f"an entry named {name[:80]!r} wants out of the image")
        if len(parts) > _DEEPEST:
            raise ImageRefused(f"an entry {len(parts)} folders deep: at most {_DEEPEST} are unpacked")
        if not parts:
            return "", ""
        key = "/".join(parts[:-1])
        if key not in self._places:
            try:
                above = resolve(self.folder, key)
            except NoPlaceError as error:
                raise ImageRefused(str(error)) from error
            if not os.path.isdir(os.path.join(self.folder, above)):
                self._make_folders(above)
            self._places[key] = above
        return self._places[key], parts[-1]

    def _make_folders(self, path: str) -> None:
        done = ""
        for part in path.split("/"):
            done = f"{done}/{part}" if done else part
            if not os.path.isdir(os.path.join(self.folder, done)):
                self._add_folder(done, 0o755, 0)

    def _add_folder(self, path: str, mode: int, time_s: int) -> None:
        whole = os.path.join(self.folder, path)
        if not os.path.isdir(whole) or os.path.islink(whole):
            self._make_way(path, is_folder=True)
            os.mkdir(whole, 0o700)
        self._folders[path] = (mode & 0o1777 | 0o700, time_s)

    def _add_hard_link(self, path: str, target: str) -> None:
        try:
            source = resolve(self.folder, target, follow_last=False)
        except NoPlaceError as error:
            raise ImageRefused(str(error)) from error
        whole = os.path.join(self.folder, source)
        if not source or not (os.path.isfile(whole) or os.path.islink(whole)):
            raise ImageRefused(f"{path[:80]!r} is a hard link to {target[:80]!r}, which is no file of the image")
        if source != path:
            self._make_way(path, is_folder=False)
            os.link(whole, os.path.join(self.folder, path), follow_symlinks=False)

    def _add_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.size > self._limits.bytes - self.bytes:
            raise ImageRefused(
                f"{path[:80]!r} would have {member.size} bytes; at most {self._limits.bytes} are unpacked"
            )
        data = tar.extractfile(member)
        assert data is not None
        self._make_way(path, is_folder=False)
        pieces = iter(lambda: data.read(_COPY_BYTES), b"")
        self._write_file(path, pieces, member.mode & 0o777 | 0o400, _time_s(member))

    def _write_file(self, path: str, pieces: Iterable[bytes], mode: int, time_s: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.join(self.folder, path), flags, 0o600)
        with open(descriptor, "wb") as file:
            for piece in pieces:
                self._count(len(piece))
                file.write(piece)
            file.flush()
            os.fchmod(descriptor, mode)
            os.utime(descriptor, (time_s, time_s))

    def _count(self, count: int) -> None:
        """Count bytes before they are written; refuse too many, and stop before the disk is full."""
        self.bytes += count
        if self.bytes > self._limits.bytes:
            raise ImageRefused(f"its layers hold more than {self._limits.bytes} bytes; that much is not unpacked")
        if self.bytes >= self._check_free_at:
            self._check_free_at = self.bytes + _CHECK_FREE_EVERY_BYTES
            free = os.statvfs(self.folder)
            if free.f_bavail * free.f_frsize < _KEEP_FREE_BYTES:
                raise ImageRefused(
                    f"{self.folder}: the disk is full after {self.bytes} bytes; name a folder on another"
                )

    def _whiteout(self, above: str, name: str) -> None:
        if name == _OPAQUE:
            self._clear(above)
            return
        hidden = name[len(_WHITEOUT) :]
        if hidden in ("", ".", "..") or hidden.startswith(_WHITEOUT):
            raise ImageRefused(f"a whiteout named {name[:80]!r} wants out of the image")
        path = f"{above}/{hidden}" if above else hidden
        if path not in self._of_this_layer:
            self._remove(path)

    def _clear(self, folder: str) -> None:
        """Remove from a folder what layers below put there, and nothing of this layer."""
        for name in os.listdir(os.path.join(self.folder, folder)):
            path = f"{folder}/{name}" if folder else name
            whole = os.path.join(self.folder, path)
            if path not in self._of_this_layer:
                self._remove(path)
            elif os.path.isdir(whole) and not os.path.islink(whole):
                self._clear(path)

    def _make_way(self, path: str, *, is_folder: bool) -> None:
        whole = os.path.join(self.folder, path)
        if os.path.lexists(whole) and not (is_folder and os.path.isdir(whole) and not os.path.islink(whole)):
            self._remove(path)

    def _remove(self, path: str) -> None:
        whole = os.path.join(self.folder, path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            shutil.rmtree(whole)
        elif os.path.lexists(whole):
            os.unlink(whole)
        self._places = {"": ""}


def _time_s(member: tarfile.TarInfo) -> int:
    """Return an entry's time of modification, in whole seconds as a .pyc has it."""
    return max(0, min(int(member.mtime), _LATEST_S))
