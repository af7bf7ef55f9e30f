"""What is still to be done to the storage below a folder in memory, and in which order. Decides; `flushing` does it.

* A name was removed: it is removed from storage when all that was written before that is there, and something newer than it (or
  nothing is left to write): whenever the node dies, storage has what was there, or what came after it.
* Files go to storage, the newest first. A folder that storage does not have appears there at once, with all its files, when
  nothing was written in it for a moment. One in which that never happens is no checkpoint but a folder of them: it is made
  empty, and what is in it goes as if it were in the uppermost one.
* What has a temporary name waits: it is about to be renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from robust_run.ckpt_io.memory_dir.kept import Kept
from robust_run.ckpt_io.memory_dir.names import Names, parents
from robust_run.ckpt_io.seen import is_temporary

#: A file is left alone for so long after it was closed, a folder after the last change, and for longer where a name is temporary.
SETTLE_S, SETTLE_FOLDER_S, SETTLE_TEMPORARY_S = 0.5, 2.0, 60.0
#: A new folder in which something is written all the time is made after so long.
LONGEST_SETTLE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class StorageTask:
    """One thing to be done to storage."""

    what: Literal["write", "move", "folder", "remove", "unit"]
    path: str
    kept: Kept
    source: str = ""
    """Of `move`: the name under which storage has that file already."""
    parts: tuple[StorageTask, ...] = ()
    """Of `unit`, a folder: what is in it, a folder before what is in that."""

    @property
    def all_kept(self) -> list[Kept]:
        """What it would bring to storage."""
        return [each.kept for each in self.parts] or [self.kept]


@dataclass
class Layers(Names):
    """The two layers."""

    def waiting(self) -> list[tuple[str, int]]:
        """Return the files that storage has not got, with their sizes."""
        with self.lock:
            return [
                (path, kept.data.size_bytes if kept.data is not None else 0)
                for path, kept in self.kept.items()
                if kept.kind in ("file", "link") and not kept.is_stored
            ]

    def next_task(self, *, is_last: bool) -> StorageTask | None:
        """Return what to do next; None: nothing now. `is_last`: nobody writes any more."""
        with self.lock:
            now_s = self.now_s()
            todo = {path: kept for path, kept in self.kept.items() if not kept.is_stored}
            if self.storage is None or not todo:
                return None
            removal = self._next_removal(todo, now_s)
            if removal is not None:
                return removal
            units: dict[str, list[tuple[str, Kept]]] = {}
            for path, kept in todo.items():
                if kept.kind != "gone":
                    units.setdefault(self._unit_of(path), []).append((path, kept))
            ready = [name for name, unit in units.items() if self._is_ready(name, unit, now_s, is_last=is_last)]
            if ready:
                name = max(ready, key=lambda each: max(kept.number for _, kept in units[each]))
                if self.kept[name].kind != "folder":
                    return self._writing(name, self.kept[name])
                unit = sorted(units[name], key=_folders_first)
                parts = tuple(self._writing(path, kept) for path, kept in unit)
                return StorageTask(what="unit", path=name, kept=self.kept[name], parts=parts)
            late = [name for name in units if self._is_late(self.kept[name], now_s)]
            return self._writing(late[0], self.kept[late[0]]) if late else None

    def _unit_of(self, path: str) -> str:
        """Return what a name gets to storage with: the uppermost folder above it that storage has not got, or by itself."""
        above = (folder for folder in parents(path) if folder in self.kept and self.kept[folder].kind == "folder")
        return min(above, key=len, default=path)

    def _is_late(self, kept: Kept, now_s: float) -> bool:
        return kept.kind == "folder" and max(kept.changed_s + LONGEST_SETTLE_S, kept.retry_at_s) <= now_s

    def _next_removal(self, todo: dict[str, Kept], now_s: float) -> StorageTask | None:
        oldest = min((kept.number for kept in todo.values() if kept.kind != "gone"), default=self.number + 1)
        above = {folder for name in self.kept for folder in parents(name)}
        for path, kept in todo.items():
            if kept.kind == "gone" and kept.retry_at_s <= now_s and path not in above and kept.number < oldest:
                followers = (number for name, (number, _) in self.stored.items() if name != path)
                if oldest > self.number or any(number > kept.replaces for number in followers):
                    return StorageTask(what="remove", path=path, kept=kept)
        return None

    def _is_ready(self, name: str, unit: list[tuple[str, Kept]], now_s: float, *, is_last: bool) -> bool:
        if any(kept.retry_at_s > now_s for _, kept in unit):
            return False
        if is_last:
            return True
        is_folder = self.kept[name].kind == "folder"
        if is_folder and self.is_written(name):
            return False
        wait_s = SETTLE_FOLDER_S if is_folder else SETTLE_S
        if any(is_temporary(part) for path, _ in unit for part in path.split("/")):
            wait_s = SETTLE_TEMPORARY_S
        return max(kept.changed_s for _, kept in unit) + wait_s <= now_s

    def _writing(self, path: str, kept: Kept) -> StorageTask:
        if kept.kind == "folder":
            return StorageTask(what="folder", path=path, kept=kept)
        for name, (_, data_number) in self.stored.items():
            above = self.kept.get(name)
            is_same = kept.data is not None and data_number == kept.data.number
            if is_same and above is not None and above.kind == "gone":
                return StorageTask(what="move", path=path, kept=kept, source=name)
        return StorageTask(what="write", path=path, kept=kept)

    def may_publish(self, task: StorageTask) -> bool:
        """Whether a name may be given to what was written for it.

        Also where something newer has taken its place, or it was removed since: else nothing would ever reach a storage that is
        slower than the program.
        """
        with self.lock:
            now = self.kept.get(task.path)
            return now is not None and now.kind != "folder" and self.shows_through(task.path)

    def is_done(self, task: StorageTask) -> None:
        """Note that a task is done."""
        with self.lock:
            now, kept = self.kept.get(task.path), task.kept
            if task.what in ("remove", "folder"):
                if task.what == "remove":
                    self.stored.pop(task.path, None)
                if now is kept:
                    del self.kept[task.path]
                return
            self.stored.pop(task.source, None)
            self.stored[task.path] = (kept.number, kept.data.number if kept.data is not None else 0)
            if now is not None and now.kind == "gone":
                now.replaces = kept.number
            kept.is_stored = now is kept
            if kept.kind == "link" and now is kept:
                del self.kept[task.path]

    def has_failed(self, task: StorageTask, again_s: float) -> None:
        """Have a task be tried again after a time."""
        with self.lock:
            for kept in task.all_kept:
                kept.tries += 1
                kept.retry_at_s = self.now_s() + again_s

    def forgive(self, most_tries: int) -> bool:
        """Have what failed be tried again now, unless it was so often; whether there is anything left to try."""
        with self.lock:
            left = [kept for kept in self.kept.values() if not kept.is_stored and kept.tries < most_tries]
            for kept in left:
                kept.retry_at_s = 0.0
            return bool(left)

    def drop_oldest(self) -> bool:
        """Let go of the bytes of the oldest file that storage has; whether there was one. It is seen in storage from now on."""
        with self.lock:
            stored = [(kept.number, path) for path, kept in self.kept.items() if kept.is_stored]
            if stored:
                del self.kept[min(stored)[1]]
            return bool(stored)


def _folders_first(each: tuple[str, Kept]) -> tuple[int, int]:
    path, kept = each
    return (0, path.count("/")) if kept.kind == "folder" else (1, kept.number)
