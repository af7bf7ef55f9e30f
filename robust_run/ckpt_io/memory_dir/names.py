"""What a folder in memory shows: names in memory first, storage below them.

Programs change memory alone, so a storage that is slow, full or read-only holds up none of them. Only what lies in storage
alone is renamed there at once.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from robust_run.ckpt_io.memory_dir.kept import Kept, Kind
from robust_run.ckpt_io.memory_dir.memory_file import MemoryFile
from robust_run.ckpt_io.memory_dir.storage import Storage


@dataclass
class Names:
    """What two layers show together. For many threads; `storage_lock` is taken before `lock`, by whoever changes storage."""

    storage: Storage | None
    now_s: Callable[[], float]
    unix_ns: Callable[[], int]
    lock: threading.RLock = field(default_factory=threading.RLock)
    storage_lock: threading.RLock = field(default_factory=threading.RLock)
    kept: dict[str, Kept] = field(default_factory=dict)
    stored: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What was written to storage and is there: its number, and that of its bytes."""
    number: int = 0
    changed: Callable[[], object] = lambda: None
    """Called when there is something to do; with `lock` held."""
    is_written: Callable[[str], bool] = lambda _: False
    """Whether something in a folder of the uppermost level is being written."""

    # --- what is seen

    def find(self, path: str) -> Kept | os.stat_result:
        """Return what a name stands for: in memory, or in storage. Raises FileNotFoundError, OSError."""
        with self.lock:
            kept = self.kept.get(path)
            if kept is not None and kept.kind != "gone":
                return kept
            if kept is None and not path:
                return Kept(kind="folder", mode=0o755, modified_ns=self.unix_ns())
            is_seen = kept is None and self.shows_through(path)
        if is_seen and self.storage is not None:  # without the lock: a storage that hangs holds up who asks for it
            status = self.storage.status(path)
            if status is not None:
                return status
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def kind_of(self, path: str) -> Kind:
        """Return what a name stands for; `gone`: nothing."""
        try:
            found = self.find(path)
        except FileNotFoundError:
            return "gone"
        if isinstance(found, Kept):
            return found.kind
        return "folder" if stat.S_ISDIR(found.st_mode) else "link" if stat.S_ISLNK(found.st_mode) else "file"

    def names(self, path: str) -> list[str]:
        """Return the names in a folder. Raises FileNotFoundError, NotADirectoryError."""
        with self.lock:
            self._check_folder(path)
            found: dict[str, None] = {}
            if self.storage is not None and self.shows_through(path):
                found = dict.fromkeys(self.storage.names(path))
            for name, kept in self.kept.items():
                if name and parent(name) == path:
                    if kept.kind == "gone":
                        found.pop(name.rpartition("/")[2], None)
                    else:
                        found[name.rpartition("/")[2]] = None
            return list(found)

    def shows_through(self, path: str) -> bool:
        """Whether storage is seen at a name of which nothing is in memory."""
        return not any(self.kept[above].kind != "folder" for above in parents(path) if above in self.kept)

    def _check_folder(self, path: str) -> None:
        kind = self.kind_of(path)
        if kind != "folder":
            number = errno.ENOENT if kind == "gone" else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)

    # --- what programs change

    def commit(self, path: str, data: MemoryFile, mode: int) -> None:
        """Have a name stand for these bytes, which are not changed any more. Storage is not asked. Raises OSError."""
        with self.lock:
            for name, wanted in ((path, ("file", "link", "gone")), (parent(path), ("folder",))):
                if name in self.kept and self.kept[name].kind not in wanted:
                    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            data.trim()
            self._put(path, Kept(kind="file", data=data, mode=mode, modified_ns=self.unix_ns()))

    def make_link(self, path: str, target: str) -> None:
        """Make a symbolic link. Raises OSError."""
        with self.lock:
            self._check_new(path)
            self._put(path, Kept(kind="link", target=target, mode=0o777, modified_ns=self.unix_ns()))

    def make_folder(self, path: str, mode: int) -> None:
        """Make a folder. Raises OSError."""
        with self.lock:
            self._check_new(path)
            self._put(path, Kept(kind="folder", mode=mode, modified_ns=self.unix_ns()))

    def change_mode(self, path: str, mode: int) -> None:
        """Set the mode of what is in memory; that of what storage has stays. Raises OSError."""
        with self.lock:
            found = self.find(path)
            if isinstance(found, Kept) and path:
                found.mode = mode

    def remove(self, path: str) -> None:
        """Remove a file or a link. Raises OSError."""
        with self.lock:
            if self.kind_of(path) == "folder":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            self.find(path)
            self._let_go(path)

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder. Raises OSError."""
        with self.lock:
            if self.names(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._let_go(path)

    def rename(self, old: str, new: str) -> None:
        """Give something another name; a file that has it is replaced. Raises OSError."""
        with self.lock:
            is_in_memory = all(name in self.kept for name in self._leaves(old))
            if is_in_memory:
                self._rename(old, new)
                return
        with self.storage_lock, self.lock:
            self._rename(old, new)

    def _rename(self, old: str, new: str) -> None:
        kind, other = self.kind_of(old), self.kind_of(new)
        self.find(old)
        self._check_folder(parent(new))
        if old == new:
            return
        if f"{new}/".startswith(f"{old}/"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), new)
        if kind != "folder":
            if other == "folder":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new)
            self._rename_leaf(old, new)
            return
        if other == "folder" and self.names(new):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        if other in ("file", "link"):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), new)
        tree = list(self._walk(old))
        folders = [name for name in tree if self.kind_of(name) == "folder"]
        for name in folders:
            if self.kind_of(new + name[len(old) :]) == "gone":
                self.make_folder(new + name[len(old) :], 0o755)
        for name in tree:
            if name not in folders:
                self._rename_leaf(name, new + name[len(old) :])
        for name in reversed(folders):
            self._let_go(name)

    def _rename_leaf(self, old: str, new: str) -> None:
        kept = self.kept.get(old)
        if kept is not None:
            self._put(new, replace(kept, is_stored=False, tries=0, retry_at_s=0.0))
            self._let_go(old)
            return
        assert self.storage is not None
        self.storage.move(old, new)
        self.kept.pop(new, None)
        self.stored.pop(new, None)
        if old in self.stored:
            self.stored[new] = self.stored.pop(old)

    def _walk(self, path: str) -> Iterator[str]:
        yield path
        if self.kind_of(path) == "folder":
            for name in self.names(path):
                yield from self._walk(f"{path}/{name}" if path else name)

    def _leaves(self, path: str) -> list[str]:
        with suppress(FileNotFoundError):
            return [name for name in self._walk(path) if self.kind_of(name) not in ("folder", "gone")]
        return []

    def _check_new(self, path: str) -> None:
        self._check_folder(parent(path))
        if self.kind_of(path) != "gone":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def _put(self, path: str, kept: Kept) -> None:
        self.number += 1
        kept.number, kept.changed_s = self.number, self.now_s()
        self.kept.pop(path, None)
        self.kept[path] = kept
        self.changed()

    def _let_go(self, path: str) -> None:
        if self.storage is None:
            self.kept.pop(path, None)
        else:
            self._put(path, Kept(kind="gone", replaces=self.stored.get(path, (0, 0))[0]))


def parent(path: str) -> str:
    """Return the folder of a path."""
    return path.rpartition("/")[0]


def parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while path:
        path = parent(path)
        yield path
