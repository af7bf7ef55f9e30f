"""What a folder in memory shows: names in memory first, storage below them; and what is still to be done to storage.

Programs change memory alone, so a storage that is slow, full or read-only holds up none of them. Only what lies in storage
alone is renamed there at once. What is left to do, in this order:

* A name was removed: it is removed from storage when all that was written before that is there, and something newer than it (or
  nothing is left to write): whenever the node dies, storage has what was there, or what came after it.
* Files go to storage, the newest first. Those in one folder (of the uppermost level) belong together: the oldest first, so that
  what programs write last, and look for, comes last there, too.
* What has a temporary name waits: it is about to be renamed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from robust_run.ckpt_io.memory_dir.memory_file import MemoryFile
from robust_run.ckpt_io.memory_dir.storage import Storage
from robust_run.ckpt_io.seen import is_temporary

Kind = Literal["file", "link", "folder", "gone"]

#: A file is left alone for so long after it was closed, one with a temporary name for longer: it may be renamed.
SETTLE_S, SETTLE_TEMPORARY_S = 0.5, 60.0


@dataclass(eq=False, kw_only=True)
class Kept:
    """A name in memory. `gone`: it was removed, whatever storage has."""

    kind: Kind
    data: MemoryFile | None = None
    """Of a file; never changed once it is here."""
    target: str = ""
    """Of a link."""
    mode: int = 0o644
    number: int = 0
    """Greater than that of all that came before."""
    changed_s: float = 0.0
    modified_ns: int = 0
    is_stored: bool = False
    """Storage has it, too."""
    replaces: int = 0
    """Of `gone`: the number of what storage has under the name; 0: of before this job, or nothing."""
    tries: int = 0
    retry_at_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StorageTask:
    """One thing to be done to storage."""

    what: Literal["write", "move", "folder", "remove"]
    path: str
    kept: Kept
    source: str = ""
    """Of `move`: the name under which storage has that file already."""


@dataclass
class Layers:
    """The two layers. Safe to use from threads; `storage_lock` is taken before `lock`, by whoever changes storage."""

    storage: Storage | None
    now_s: Callable[[], float]
    unix_ns: Callable[[], int]
    lock: threading.RLock = field(default_factory=threading.RLock)
    storage_lock: threading.RLock = field(default_factory=threading.RLock)
    _kept: dict[str, Kept] = field(default_factory=dict)
    _stored: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What was written to storage and is there: its number, and that of its bytes."""
    _number: int = 0
    changed: Callable[[], object] = lambda: None
    """Called when there is something to do."""

    # --- what is seen

    def find(self, path: str) -> Kept | os.stat_result:
        """Return what a name stands for: in memory, or in storage. Raises FileNotFoundError, OSError."""
        with self.lock:
            kept = self._kept.get(path)
            if kept is not None and kept.kind != "gone":
                return kept
            if kept is None and not path:
                return Kept(kind="folder", mode=0o755, modified_ns=self.unix_ns())
            is_seen = kept is None and self._shows_through(path)
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
            if self.storage is not None and self._shows_through(path):
                found = dict.fromkeys(self.storage.names(path))
            for name, kept in self._kept.items():
                if name and parent(name) == path:
                    if kept.kind == "gone":
                        found.pop(name.rpartition("/")[2], None)
                    else:
                        found[name.rpartition("/")[2]] = None
            return list(found)

    def _shows_through(self, path: str) -> bool:
        """Whether storage is seen at a name of which nothing is in memory."""
        return not any(self._kept[above].kind != "folder" for above in parents(path) if above in self._kept)

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
                if name in self._kept and self._kept[name].kind not in wanted:
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
        """Give something another name; a file that has it is replaced. Raises OSError: of storage, too, for what lies there alone."""
        with self.lock:
            is_in_memory = all(name in self._kept for name in self._leaves(old))
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
        kept = self._kept.get(old)
        if kept is not None:
            self._put(new, replace(kept, is_stored=False, tries=0, retry_at_s=0.0))
            self._let_go(old)
            return
        assert self.storage is not None
        self.storage.move(old, new)
        self._kept.pop(new, None)
        self._stored.pop(new, None)
        if old in self._stored:
            self._stored[new] = self._stored.pop(old)

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
        self._number += 1
        kept.number, kept.changed_s = self._number, self.now_s()
        self._kept.pop(path, None)
        self._kept[path] = kept
        self.changed()

    def _let_go(self, path: str) -> None:
        if self.storage is None:
            self._kept.pop(path, None)
        else:
            self._put(path, Kept(kind="gone", replaces=self._stored.get(path, (0, 0))[0]))

    # --- what is to be done to storage

    def waiting(self) -> list[tuple[str, int]]:
        """Return the files that storage has not got, with their sizes."""
        with self.lock:
            return [
                (path, kept.data.size_bytes if kept.data is not None else 0)
                for path, kept in self._kept.items()
                if kept.kind in ("file", "link") and not kept.is_stored
            ]

    def next_task(self, *, is_last: bool, is_urgent: bool = False) -> StorageTask | None:
        """Return what to do next; None: nothing now. `is_last`: nobody writes any more. `is_urgent`: memory is short."""
        with self.lock:
            if self.storage is None:
                return None
            now_s = self.now_s()
            todo = {path: kept for path, kept in self._kept.items() if not kept.is_stored}
            oldest = min((kept.number for kept in todo.values() if kept.kind != "gone"), default=self._number + 1)
            above = {folder for name in self._kept for folder in parents(name)} if todo else set()
            for path, kept in todo.items():
                is_due = kept.kind == "gone" and kept.retry_at_s <= now_s and path not in above
                if is_due and self._may_remove(path, kept, oldest):
                    return StorageTask(what="remove", path=path, kept=kept)
            units: dict[str, list[tuple[str, Kept]]] = {}
            for path, kept in todo.items():
                if kept.kind != "gone" and kept.retry_at_s <= now_s:
                    units.setdefault(path.partition("/")[0], []).append((path, kept))
            ready = [each for each in units.values() if self._is_settled(each, is_last=is_last, is_urgent=is_urgent)]
            if not ready:
                return None
            path, kept = min(max(ready, key=_newest), key=lambda each: each[1].number)
            return self._writing(path, kept)

    def _writing(self, path: str, kept: Kept) -> StorageTask:
        if kept.kind == "folder":
            return StorageTask(what="folder", path=path, kept=kept)
        for name, (_, data_number) in self._stored.items():
            above = self._kept.get(name)
            is_same = kept.data is not None and data_number == kept.data.number
            if is_same and above is not None and above.kind == "gone":
                return StorageTask(what="move", path=path, kept=kept, source=name)
        return StorageTask(what="write", path=path, kept=kept)

    def _is_settled(self, unit: list[tuple[str, Kept]], *, is_last: bool, is_urgent: bool) -> bool:
        if is_last:
            return True
        is_named_so = any(is_temporary(part) for path, _ in unit for part in path.split("/"))
        wait_s = SETTLE_TEMPORARY_S if is_named_so else SETTLE_S
        return is_urgent or max(kept.changed_s for _, kept in unit) + wait_s <= self.now_s()

    def _may_remove(self, path: str, kept: Kept, oldest: int) -> bool:
        """`oldest`: the number of the oldest that storage has not got."""
        is_followed = any(number > kept.replaces for name, (number, _) in self._stored.items() if name != path)
        return kept.number < oldest and (is_followed or oldest > self._number)

    def may_publish(self, task: StorageTask) -> bool:
        """Whether a name may be given to what was written for it: also where something newer has taken its place, or it was removed
        since, as else nothing would ever reach a storage that is slower than the program.
        """
        with self.lock:
            now = self._kept.get(task.path)
            return now is not None and now.kind != "folder" and self._shows_through(task.path)

    def is_done(self, task: StorageTask) -> None:
        """Note that a task is done."""
        with self.lock:
            now = self._kept.get(task.path)
            if task.what == "remove":
                self._stored.pop(task.path, None)
                if now is task.kept:
                    del self._kept[task.path]
                return
            if task.what == "folder":
                if now is task.kept:
                    del self._kept[task.path]
                return
            if task.what == "move":
                self._stored.pop(task.source, None)
            self._stored[task.path] = (task.kept.number, task.kept.data.number if task.kept.data is not None else 0)
            if now is not None and now.kind == "gone":
                now.replaces = task.kept.number
            task.kept.is_stored = now is task.kept
            if task.kept.kind == "link" and now is task.kept:
                del self._kept[task.path]

    def has_failed(self, task: StorageTask, again_s: float) -> None:
        """Have a task be tried again after a time."""
        with self.lock:
            task.kept.tries += 1
            task.kept.retry_at_s = self.now_s() + again_s

    def forgive(self, most_tries: int) -> bool:
        """Have what failed be tried again now, unless it was so often; whether there is anything left to try."""
        with self.lock:
            left = [kept for kept in self._kept.values() if not kept.is_stored and kept.tries < most_tries]
            for kept in left:
                kept.retry_at_s = 0.0
            return bool(left)

    def drop_oldest(self) -> bool:
        """Let go of the bytes of the oldest file that storage has; whether there was one. It is seen in storage from now on."""
        with self.lock:
            stored = [(kept.number, path) for path, kept in self._kept.items() if kept.is_stored]
            if not stored:
                return False
            del self._kept[min(stored)[1]]
            return True


def _newest(unit: list[tuple[str, Kept]]) -> int:
    return max(kept.number for _, kept in unit)


def parent(path: str) -> str:
    """Return the folder of a path."""
    return path.rpartition("/")[0]


def parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while path:
        path = parent(path)
        yield path
