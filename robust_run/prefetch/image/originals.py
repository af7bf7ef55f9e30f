"""Modes and times of entries whose folder is ours meanwhile: what they should be is remembered, and given to them at the end."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterable, Iterator

from robust_run.prefetch.image.losses import LATEST_S, Losses, Original, lasting
from robust_run.prefetch.image.survey import Survey, can_be_written, entries_below

#: Of a folder that no entry names.
IMPLIED = Original(0o755, 0, is_folder=True)
#: How tars name extended attributes: most tools, libarchive's, and those that write ACLs as text.
_ATTRIBUTES = ("SCHILY.xattr.", "LIBARCHIVE.xattr.", "SCHILY.")
_ACLS = ("SCHILY.acl.access", "SCHILY.acl.default")


class Originals:
    """What the entries of one folder should be."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._by_path: dict[str, Original] = {"": IMPLIED}
        """Where the folder shows it otherwise; of all folders. Some may be gone by now."""
        self._same: dict[Original, Original] = {}

    def note(self, path: str, original: Original) -> None:
        """Remember what an entry should be, unless it shows."""
        mode = original.mode
        is_plain = (original.uid, original.gid) == (0, 0) and original.kept_mode() == mode == shown_mode(original)
        is_plain = is_plain and 0 <= original.time_s <= LATEST_S and not original.attributes
        if is_plain and not original.is_folder and not original.is_device:
            self._by_path.pop(path, None)
        else:
            self._by_path[path] = self._same.setdefault(original, original)

    def link(self, path: str, source: str) -> None:
        """Remember that an entry is a hard link to another, and so what that is."""
        self._by_path.pop(path, None)
        if source in self._by_path:
            self._by_path[path] = self._by_path[source]

    def finish(self) -> Survey:
        """Give folders their modes and times, and return what the folder does not show. See `Extraction.finish`."""
        losses = Losses()
        modes: dict[str, int] = {}
        there = ["", *(path for path, _entry in entries_below(self._folder) if path in self._by_path)]
        for path in there:
            losses.note(path or "/", self._by_path[path])
        for path in reversed(there):  # a folder after what is in it, which changes its time
            self._finish_one(path, self._by_path[path], losses, modes)
        return Survey(modes, losses.found())

    def _finish_one(self, path: str, original: Original, losses: Losses, modes: dict[str, int]) -> None:
        whole = os.path.join(self._folder, path)
        mode = os.lstat(whole).st_mode
        if original.is_device:
            os.unlink(whole)
            return
        if stat.S_ISLNK(mode):
            return
        wanted, shown = original.kept_mode(), stat.S_IMODE(mode)
        if original.is_folder:
            shown = wanted & 0o1777 | 0o700
            os.chmod(whole, shown)
            os.utime(whole, (time_in_image(original.time_s),) * 2)
        if wanted == shown:
            return
        if can_be_written(path):
            modes[path] = wanted
        elif wanted & 0o400 or os.geteuid() == 0:
            os.chmod(whole, wanted)
        else:
            losses.add("modes", path)


def original_of(member: tarfile.TarInfo) -> Original:
    """Return what an entry of a layer should be."""
    return Original(
        mode=member.mode & 0o7777,
        time_s=int(member.mtime),
        uid=member.uid,
        gid=member.gid,
        attributes=lasting(_attributes_of(member.pax_headers)),
        is_folder=member.isdir(),
        is_device=not (member.isreg() or member.isdir() or member.issym() or member.isfifo()),
    )


def _attributes_of(headers: Iterable[str]) -> Iterator[str]:
    """Yield the names of the extended attributes that an entry's headers tell of, each once."""
    found = set()
    for header in headers:
        for prefix in _ATTRIBUTES:
            if header.startswith(prefix) and (prefix != "SCHILY." or header in _ACLS):
                found.add(header.removeprefix(prefix))
                break
    yield from sorted(found)


def shown_mode(original: Original) -> int:
    """Return the permissions that an entry has while the folder is ours: we can read it, and it runs as no other user."""
    return original.mode & 0o777 | 0o400


def time_in_image(time_s: int) -> int:
    """Return a time of modification that an image can have, in whole seconds as a .pyc has it."""
    return max(0, min(time_s, LATEST_S))
