"""Applying the tar layers of an image to a folder, one above the other, without leaving it. Needs no root.

A layer is hostile until shown otherwise. Paths are resolved inside the folder, the way a container's kernel would; the last part
is never followed; counts and bytes are limited, also of what compressed data becomes. Each layer is applied as the OCI image
specification has it (layer.md): first its whiteouts, to what the layers below have made, then its entries, in their order.

Times of modification are the layers', or 0 where they name none, never of the unpacking: an image of them is the same each time.
What the folder cannot have while it is ours (modes that would lock us out, setuid bits, owners) is remembered until `finish`.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Sequence
from typing import IO

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image.losses import Original
from robust_run.prefetch.image.names import LayerLimits, Whiteout, is_bookkeeping, parts_of, whiteout_of
from robust_run.prefetch.image.originals import IMPLIED, Originals, original_of, shown_mode, time_in_image
from robust_run.prefetch.image.places import NoPlaceError, resolve
from robust_run.prefetch.image.survey import Survey
from robust_run.prefetch.image.unpacking import ForwardReader, Packing, members_of, opened_tar, unpacked

_COPY_BYTES = 1 << 20
#: Between an entry's data is read and written this much disk must stay free.
_KEEP_FREE_BYTES = 64 << 20
_CHECK_FREE_EVERY_BYTES = 64 << 20


class Extraction:
    """One image's folder while its layers are applied to it. Use from one thread; no other process may write the folder."""

    def __init__(self, folder: str, limits: LayerLimits) -> None:
        self.folder = os.path.realpath(folder)
        self.bytes = 0
        """Of all files written."""
        self.entries = 0
        self._limits = limits
        self._originals = Originals(self.folder)
        self._places: dict[tuple[str, ...], str] = {(): ""}
        self._check_free_at = 0

    def apply(
        self,
        file: IO[bytes],
        packing: Packing,
        sha256: str,
        size_bytes: int,
        progress: Callable[[int], None] | None = None,
        *,
        whiteouts: Sequence[Whiteout] | None = None,
    ) -> None:
        """Apply one layer. `sha256` and `size_bytes`: of the file as it is stored; `whiteouts`: those in it, see `whiteouts`.

        None: there is no layer below from which anything could be gone. Raises `ImageRefused` where it is not that file, is no
        tar, wants out, or cannot be written.
        """
        reader = ForwardReader(unpacked(file, packing, size_bytes, progress))
        with opened_tar(reader, sha256) as tar:
            self._hide(whiteouts or ())
            seen = 0
            for member in members_of(tar):
                hidden = self._one(tar, member)
                if hidden is not None and whiteouts is not None:
                    if whiteouts[seen : seen + 1] != [hidden]:
                        raise ImageRefused(f"layer {sha256[:12]} was changed while it was read; build again")
                    seen += 1
            reader.finish(sha256)
            if whiteouts is not None and seen != len(whiteouts):
                raise ImageRefused(f"layer {sha256[:12]} was changed while it was read; build again")

    def write(self, name: str, data: bytes) -> None:
        """Write a file of ours into the root, in place of any other."""
        self._make_way(name, is_folder=False)
        self._write_file(name, [data], 0o644, 0)
        self._originals.note(name, Original(0o644, 0))

    def finish(self) -> Survey:
        """Give folders their modes and times, and return what the folder does not show. Last: nothing can be applied after it.

        What is there is looked at, and not what was noted: that may be gone, and a link in its place may lead anywhere.
        """
        return self._originals.finish()

    def _one(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> Whiteout | None:
        """Apply an entry; return it where it is a whiteout, which is not carried out here."""
        self.entries += 1
        if self.entries > self._limits.entries:
            raise ImageRefused(f"more than {self._limits.entries} entries in its layers; that many are not unpacked")
        if member.size > self._limits.bytes - self.bytes:
            raise ImageRefused(
                f"{member.name[:80]!r} would have {member.size} bytes; at most {self._limits.bytes} are unpacked"
            )
        parts = parts_of(member.name)
        if is_bookkeeping(parts):
            return None
        hidden = whiteout_of(parts)
        if hidden is not None:
            return hidden
        original = original_of(member)
        if not parts:
            self._originals.note("", original)
            return None
        above = self._place(parts[:-1])
        path = f"{above}/{parts[-1]}" if above else parts[-1]
        if member.isdir():
            self._add_folder(path, original)
        elif member.islnk():
            self._add_hard_link(path, member.linkname)
        else:
            self._make_way(path, is_folder=False)
            self._add(tar, member, path, original)
            self._originals.note(path, original)
        return None

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, original: Original) -> None:
        """Make what is neither a folder nor a hard link, where nothing is in its way."""
        whole = os.path.join(self.folder, path)
        time_s = time_in_image(original.time_s)
        if member.issym():
            os.symlink(member.linkname, whole)
            self._places = {(): ""}
        elif member.isfifo():
            os.mkfifo(whole, 0o600)
            os.chmod(whole, shown_mode(original))
        elif member.isreg():
            data = tar.extractfile(member)
            assert data is not None
            self._write_file(path, iter(lambda: data.read(_COPY_BYTES), b""), shown_mode(original), time_s)
            return
        else:  # a device: a mark in its place, so that what lies above can replace and remove it as anything else
            self._write_file(path, (), 0o600, 0)
            return
        os.utime(whole, (time_s, time_s), follow_symlinks=False)

    def _place(self, folder: tuple[str, ...]) -> str:
        """Return the folder of an entry, without links, and made if it is missing."""
        if folder not in self._places:
            try:
                above = resolve(self.folder, "/".join(folder))
            except NoPlaceError as error:
                raise ImageRefused(str(error)) from error
            if not os.path.isdir(os.path.join(self.folder, above)):
                self._make_folders(above)
            self._places[folder] = above
        return self._places[folder]

    def _make_folders(self, path: str) -> None:
        done = ""
        for part in path.split("/"):
            done = f"{done}/{part}" if done else part
            if not os.path.isdir(os.path.join(self.folder, done)):
                self._add_folder(done, IMPLIED)

    def _add_folder(self, path: str, original: Original) -> None:
        whole = os.path.join(self.folder, path)
        if not os.path.isdir(whole) or os.path.islink(whole):
            self._make_way(path, is_folder=True)
            os.mkdir(whole, 0o700)
        self._originals.note(path, original)

    def _add_hard_link(self, path: str, target: str) -> None:
        try:
            source = resolve(self.folder, target, follow_last=False)
        except NoPlaceError as error:
            raise ImageRefused(str(error)) from error
        whole = os.path.join(self.folder, source)
        if not source or not os.path.lexists(whole) or stat.S_ISDIR(os.lstat(whole).st_mode):
            raise ImageRefused(f"{path[:80]!r} is a hard link to {target[:80]!r}, which is no file of the image")
        if source != path:
            self._make_way(path, is_folder=False)
            os.link(whole, os.path.join(self.folder, path), follow_symlinks=False)
            self._originals.link(path, source)

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

    def _hide(self, whiteouts: Iterable[Whiteout]) -> None:
        """Remove what a layer hides of those below. All is found before anything is removed: one may lead through another."""
        doomed: dict[str, None] = {}
        emptied: set[str] = set()
        for each in dict.fromkeys(whiteouts):
            try:
                above = resolve(self.folder, "/".join(each.folder))
            except NoPlaceError as error:
                raise ImageRefused(str(error)) from error
            if not os.path.isdir(os.path.join(self.folder, above)):
                continue
            prefix = f"{above}/" if above else ""
            if each.name:
                doomed[prefix + each.name] = None
            elif above not in emptied:
                emptied.add(above)
                doomed |= dict.fromkeys(prefix + name for name in os.listdir(os.path.join(self.folder, above)))
        for path in doomed:
            self._remove(path)

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
        self._places = {(): ""}
