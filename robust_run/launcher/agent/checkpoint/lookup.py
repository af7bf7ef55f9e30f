"""Checkpoint lookup on a node: looks at its folder of checkpoints, asks what is in memory, knows where what was chosen lies
here, and what its ranks have saved.

Looking is done by a thread, because a file system that hangs must hold up nothing else, not even what is in memory: that is asked
for at the same time, and told alone where the folder takes long. Imported where there is such a folder, or such memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from robust_run.ckpt_io.newest import MOST_SEEN, Known, look
from robust_run.ckpt_io.seen import FolderLook, MemoryHeld, below, is_url
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.resume_events import LookForCheckpoints, ResumePoint, SavedCheckpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.ckpt_io.newest_far import KnownFar

#: Before there is a loop (the first attempt of a job of one node) an answer is waited for so long; then it follows.
AT_ONCE_S = 1.0
#: Notes of what ranks have saved are looked for so often until there is one, and so often at last: in rounds of a second.
FIRST_ROUNDS, MOST_ROUNDS = 2, 30
#: What is in memory is told without what the folder shows, if that has not come so long after it.
FOLDER_S = 1.0


class _Question:
    """One question, and what is known of its answer."""

    def __init__(self, order: LookForCheckpoints) -> None:
        self.order = order
        self.memory = MemoryHeld()
        self.has_memory = threading.Event()
        """It has been said what is in memory."""
        self.is_looked = threading.Event()
        """The folder has been looked at."""


class AgentCheckpoints:
    """One agent's. Questions are answered in turn, by one thread at a time; a newer one takes the place of what was not begun."""

    def __init__(
        self,
        own_folder: str | None,
        deliver: Callable[[CheckpointsSeen], None],
        held: Callable[[], MemoryHeld] | None = None,
    ) -> None:
        """`own_folder`: --ckpt-dir of this node; None: it was given none. `held`: what is in memory here; may take seconds.
        None: nothing is kept there.
        """
        self._own_folder = own_folder
        self._deliver = deliver
        self._held = held
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        """Has the agent's own thread call something; None: it has no loop yet."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next: _Question | None = None
        self._answers: list[CheckpointsSeen] = []
        self._known: Known = {}
        """Of the folder; used by the thread that looks."""
        self._known_far: KnownFar = {}
        """The same of one that is a URL."""
        self._folder = own_folder or ""
        self._real_folder = ""
        """The same with links followed; empty: not looked at yet."""
        self._wait = self._waited = 0
        """In rounds: between two looks for what ranks have saved, and since the last."""
        self._saved: tuple[int, SavedCheckpoint | None] = (-1, None)
        """The newest that was found, and in which attempt."""
        self._seen = FolderLook()
        """The newest answer."""

    def attach(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Answer by way of the loop from now on, beginning with what was found before there was one."""
        with self._lock:
            self._call_soon = call_soon
        self._hand_over()

    def look(self, order: LookForCheckpoints) -> None:
        """Look, and deliver what is seen."""
        question = _Question(order)
        if self._held is None:
            question.has_memory.set()
        else:
            threading.Thread(target=self._ask_memory, args=(question,), name="memory", daemon=True).start()
        if order.memory_only and self._held is not None:
            question.is_looked.set()
            return
        with self._lock:
            self._next = question
            has_loop = self._call_soon is not None
            thread = self._start()
        if not has_loop:
            thread.join(AT_ONCE_S)
            self._hand_over()

    def prepare(self) -> None:
        """Read what manifests are there, so that the next look need not: an attempt ends, and another is about to begin."""
        if self._folder and not is_url(self._folder):
            with self._lock:
                self._start()

    def _start(self) -> threading.Thread:
        """Have the thread run; with the lock held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()
        return self._thread

    def _run(self) -> None:
        """Look until no question is left; without one, for the sake of what is known then."""
        while True:
            with self._lock:
                question, self._next = self._next, None
            found = self._look_at(question.order if question is not None else None)
            if question is not None:
                question.is_looked.set()
                question.has_memory.wait()
                self._answer(question, found)
            with self._lock:
                if self._next is None:
                    self._thread = None
                    return

    def _ask_memory(self, question: _Question) -> None:
        """See what is in memory; tell it alone where the folder is not wanted, or hangs: what is there follows when it comes."""
        assert self._held is not None
        question.memory = self._held()
        question.has_memory.set()
        if question.order.memory_only:
            self._answer(question, FolderLook())
        elif not question.is_looked.wait(FOLDER_S):
            self._answer(question, None)

    def _answer(self, question: _Question, found: FolderLook | None) -> None:
        order = question.order
        memory = question.memory
        answer = CheckpointsSeen(
            attempt=order.attempt,
            number=order.number,
            look=found,
            memory=memory.generations,
            memory_room_bytes=memory.room_bytes,
        )
        with self._lock:
            if found is None and question.is_looked.is_set():
                return  # it has come after all
            self._answers.append(answer)
            call_soon = self._call_soon
        if call_soon is not None:
            with suppress(RuntimeError):  # the loop is closed: the agent does not want to know any more
                call_soon(self._hand_over)

    def _look_at(self, order: LookForCheckpoints | None) -> FolderLook:
        if order is None:
            return FolderLook() if is_url(self._folder) else look(self._folder, whole=0, known=self._known)
        folder = self._own_folder or order.folder
        if not folder or order.memory_only:  # it is asked for what is in memory
            return FolderLook()
        if folder != self._folder:
            self._folder, self._known, self._known_far = folder, {}, {}
        if is_url(folder):
            return self._look_far(folder, order)
        self._real_folder = os.path.realpath(folder)
        return look(
            folder,
            names=order.names,
            avoid=order.avoid,
            untrusted=order.untrusted,
            most=order.most or MOST_SEEN,
            known=self._known,
        )

    def _look_far(self, url: str, order: LookForCheckpoints) -> FolderLook:
        from robust_run.ckpt_io.newest_far import look_far

        self._real_folder = ""
        return look_far(
            url,
            names=order.names,
            avoid=order.avoid,
            untrusted=order.untrusted,
            most=order.most or MOST_SEEN,
            known=self._known_far,
        )

    def _hand_over(self) -> None:
        """Deliver what was found; in the agent's own thread."""
        with self._lock:
            answers, self._answers = self._answers, []
        for answer in answers:
            self._seen = answer.look if answer.look is not None else self._seen
            self._deliver(answer)

    # --- what ranks have saved

    def look_for_saves(self, attempt: int, folders: Iterable[str]) -> SavedCheckpoint | None:
        """Return what ranks have saved here since the last look, if it is time for one: once a second it is asked.

        `folders`: of the ranks in the run directory. A look is a few small files there, and none at the checkpoints.
        """
        if self._saved[0] != attempt:
            self._saved, self._wait, self._waited = (attempt, None), FIRST_ROUNDS, 0
        self._waited += 1
        if self._waited < self._wait:
            return None
        self._waited = 0
        before = self._saved[1]
        if before is not None:
            self._wait = min(2 * self._wait, MOST_ROUNDS)
        newest = self.newest_save(folders)
        self._saved = attempt, newest
        return newest if newest != before else None

    def newest_save(self, folders: Iterable[str]) -> SavedCheckpoint | None:
        """Return the newest checkpoint that ranks say they have saved in the folder that is looked at here, if one says so."""
        from robust_run.ckpt_io.notes import read_save

        mine = {self._folder if is_url(self._folder) else os.path.normpath(self._folder), self._real_folder} - {"", "."}
        notes = [note for note in map(read_save, folders) if note is not None and mine.intersection(note.roots)]
        newest = max(notes, key=lambda note: note.created_s, default=None)
        if newest is None:
            return None
        return SavedCheckpoint(step=newest.step, uuid=newest.uuid, name=newest.name, created_unix_s=newest.created_s)

    # --- where it lies

    def path_of(self, point: ResumePoint) -> str:
        """Return what workers here get as ROBUST_RESUME; empty: nothing, they start from the beginning."""
        if point.source != "storage":
            return point.address if point.source else ""
        for seen in self._seen.seen:
            if seen.uuid == point.uuid if point.uuid else (seen.step == point.step and seen.fault == ""):
                return below(self._own_folder or self._folder, seen.name)
        return below(self._own_folder, point.name) if self._own_folder else point.address
