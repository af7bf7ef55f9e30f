"""Brings what is in memory to storage, in a thread of low priority, and what is left at the end of a job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from robust_run.ckpt_io.memory_dir.layers import Layers, StorageTask
from robust_run.ckpt_io.memory_dir.storage import Storage
from robust_run.ckpt_io.memory_dir.types import Written

NICENESS = 10
#: What failed is tried again after so long, and twice as long each time.
FIRST_AGAIN_S, LONGEST_AGAIN_S = 1.0, 60.0
#: At the end of a job each thing is tried so often, and storage that takes nothing for so long is given up.
LAST_TRIES, STALLED_S = 3, 60.0
_IDLE_S, _TICK_S = 0.25, 0.05
_MOST_NAMED = 5


class Flusher:
    """One folder's."""

    def __init__(self, layers: Layers, storage: Storage, say: Callable[[str], None]) -> None:
        self._layers, self._storage, self._say = layers, storage, say
        self._news = threading.Condition()
        self._is_last = self._is_over = False
        self._has_nothing_to_do = False
        self.done_bytes = 0
        """Written so far, by all tasks."""
        self.files = self.file_bytes = 0
        self._said: set[str] = set()
        self._why = ""
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        layers.changed = self.wake

    def start(self) -> None:
        """Begin."""
        self._storage.clear_staging(of_others=True)
        self._thread.start()

    def wake(self) -> None:
        """There may be something to do."""
        with self._news:
            self._has_nothing_to_do = False
            self._news.notify_all()

    # --- the thread

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while not self._is_over:
            task = self._layers.next_task(is_last=self._is_last)
            if task is None:
                self._rest()
            else:
                self.do(task)

    def _rest(self) -> None:
        if self._is_last and self._layers.forgive(LAST_TRIES) and self._layers.next_task(is_last=True) is not None:
            self._news_after(_IDLE_S)
            return
        with self._news:
            self._has_nothing_to_do = self._is_last
            self._news.notify_all()
            self._news.wait(_IDLE_S)

    def _news_after(self, wait_s: float) -> None:
        with self._news:
            self._news.wait(wait_s)

    def do(self, task: StorageTask) -> bool:
        """Do one thing to storage; whether it was done. Never raises: what fails is tried again."""
        try:
            self._do(task)
        except OSError as error:
            self._layers.has_failed(task, min(LONGEST_AGAIN_S, FIRST_AGAIN_S * 2**task.kept.tries))
            self._failed(task, error)
            return False
        if task.what in ("write", "move") and task.kept.is_stored:
            self._succeeded(task)
        return True

    def _do(self, task: StorageTask) -> None:
        layers, storage = self._layers, self._storage
        if task.what == "write":
            staged = storage.stage(task.kept, self._wrote)
            with layers.storage_lock:
                if not layers.may_publish(task):
                    storage.discard(staged)
                    return
                storage.publish(staged, task.path)
                layers.is_done(task)
            return
        if task.what == "unit":
            self._bring(task)
            return
        with layers.storage_lock:
            if task.what == "remove":
                storage.remove(task.path)
            elif task.what == "folder":
                storage.make_folder(task.path)
            else:
                storage.move(task.source, task.path)
            layers.is_done(task)

    def _bring(self, unit: StorageTask) -> None:
        """Have a folder appear at once, with all that is in it; where storage has it, what is new goes into it singly."""
        layers, storage = self._layers, self._storage
        if storage.status(unit.path) is not None or any(part.what == "move" for part in unit.parts):
            self._do(replace(unit, what="folder", parts=()))
            return
        top = storage.stage_folder()
        try:
            for part in unit.parts:
                storage.stage_in(top, part.path, part.kept, self._wrote)
            with layers.storage_lock:
                done = [part for part in unit.parts if part.what == "folder" or layers.may_publish(part)]
                for part in unit.parts:
                    if part not in done:
                        storage.discard(os.path.join(top, part.path))
                if not storage.publish_folder(top, unit.path):
                    return  # it was made meanwhile
                for part in done:
                    layers.is_done(part)
        finally:
            storage.discard_folder(top)
        for part in done:
            if part.what == "write":
                self._succeeded(part)

    def _wrote(self, size_bytes: int) -> None:
        with self._news:
            self.done_bytes += size_bytes
            self._news.notify_all()

    def _succeeded(self, task: StorageTask) -> None:
        with self._news:
            self.files += 1
            self.file_bytes += task.kept.data.size_bytes if task.kept.data is not None else 0
            self._news.notify_all()
        if self._why and not self._is_last:
            self._say(f"files are written to {self._storage.root} again")
        self._why = ""
        self._said.clear()

    def _failed(self, task: StorageTask, error: OSError) -> None:
        self._why = error.strerror or str(error)
        if self._is_last or self._why in self._said:
            return
        self._said.add(self._why)
        what = "removed from" if task.what == "remove" else "written to"
        stays = "" if task.what == "remove" else "it stays in memory, and "
        self._say(f"{task.path!r} cannot be {what} {self._storage.root}: {self._why}; {stays}that is tried again")

    # --- the end of a job. With `_news` held no layer is asked: what changes layers takes it, too.

    def finish(self, limit_s: float | None, tell: Callable[[int, int], None], every_s: float) -> Written:
        """Write what is left, nobody writing any more, and say what was; `tell` is told of bytes done and bytes in all.

        `limit_s`: for no longer than that; None: for as long as storage takes something.
        """
        all_bytes = sum(size for _, size in self._layers.waiting())
        self._layers.forgive(1 << 30)
        with self._news:
            begin_bytes, files, file_bytes = self.done_bytes, self.files, self.file_bytes
            self._is_last, self._has_nothing_to_do = True, False
            self._news.notify_all()
        self._wait_for_the_end(limit_s, lambda: tell(self.done_bytes - begin_bytes, all_bytes), every_s)
        lost = [path for path, _ in self._layers.waiting()]
        self._is_over = True
        self._storage.clear_staging(of_others=False)
        return Written(
            files=self.files - files,
            bytes=self.file_bytes - file_bytes,
            lost=tuple(lost[-_MOST_NAMED:]),
            lost_files=len(lost),
            why=self._why if lost else "",
        )

    def _wait_for_the_end(self, limit_s: float | None, tell: Callable[[], None], every_s: float) -> None:
        began_s = told_s = moved_s = time.monotonic()
        last_bytes = self.done_bytes
        while not self._has_nothing_to_do:
            with self._news:
                self._news.wait(_TICK_S)
            now_s = time.monotonic()
            if self.done_bytes != last_bytes:
                last_bytes, moved_s = self.done_bytes, now_s
            if now_s - told_s >= every_s:
                told_s = now_s
                tell()
            if now_s - moved_s > STALLED_S or (limit_s is not None and now_s - began_s > limit_s):
                self._why = self._why or f"there was no more time after {now_s - began_s:.0f} s"
                return
