"""Writes of whole generations to storage, one at a time: which is wanted, which is under way, and which buffers it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from robust_run.ckpt_io.memory.agent_protocol import Flushed, FlushLast, KeeperNote
from robust_run.ckpt_io.memory.buffers import read_only
from robust_run.ckpt_io.memory.flushing.choosing import all_whole, has, offered
from robust_run.ckpt_io.memory.flushing.removals import AT_THE_END_S, Removals
from robust_run.ckpt_io.memory.flushing.running import Process, Runs, Starts
from robust_run.ckpt_io.memory.flushing.words import (
    FlushAnswer,
    FlushDone,
    FlushOrder,
    FlushProgress,
    FlushSilent,
)
from robust_run.ckpt_io.memory.generations import Generation, HeldBuffer, Holdings

#: How long other nodes may show no sign of going on.
OTHERS_S = 60.0
#: How long a generation that is wanted may take to be whole: all ranks have copied it, and it is hashed at once.
WHOLE_WITHIN_S = 60.0
#: How often people are told of one that they wait for.
SAID_EVERY_S = 10.0
#: How often they are told of one and the same trouble.
SAID_AGAIN_S = 600.0


class _Wanted(NamedTuple):
    generation: Generation
    run_dir: str
    until_s: float


class _Last(NamedTuple):
    number: int
    until_s: float
    others_s: float
    is_job_over: bool


class _Running(NamedTuple):
    process: Process
    generation: Generation
    """The newest that it may write."""
    buffers: frozenset[int]
    is_last: bool


class Flushes:
    """Of one node. Used from the keeper's thread."""

    def __init__(
        self, start: Starts, tell: Callable[[KeeperNote | Flushed], None], run: Runs, now_s: Callable[[], float]
    ) -> None:
        self.job = ""
        """What names the job."""
        self.storage = ""
        """The folder that ranks of this node save to, as far as they have said so."""
        self._start, self._tell, self._run, self._now_s = start, tell, run, now_s
        self._wanted: _Wanted | None = None
        self._last: _Last | None = None
        self._running: _Running | None = None
        self._failed: dict[Generation, None] = {}
        self._stored: FlushDone | None = None
        """The newest that storage has from here."""
        self._said_at_s = 0.0
        self.removals = Removals(start, tell, run)
        self._trouble, self._trouble_again_s = "", 0.0
        """What went wrong the last time, as it was said; and when that is said again."""
        self._hangs: Process | None = None
        """One that nobody could end: as long as it is there another one would hang, too."""
        self.stands_in: tuple[int, ...] = ()
        """Ranks of lost nodes that are written, too."""
        self._is_ending = False
        """All is written at the end of the job, and what comes after that is under way."""

    @property
    def is_busy(self) -> bool:
        """Whether one is wanted or under way."""
        if self._wanted is not None and self._now_s() > self._wanted.until_s:
            self._wanted = None  # some rank will never have it
        if self._hangs is not None and self._hangs.is_over():
            self._hangs = None
        what = (self._wanted, self._running, self._last, self._hangs)
        return any(each is not None for each in what)

    @property
    def is_last(self) -> bool:
        """Whether the job is over."""
        return self._last is not None

    def want(self, generation: Generation, run_dir: str) -> None:
        """Note that a generation is to be written as soon as it is whole. All ranks of the node say so."""
        if self._last is None and self._running is None and self._hangs is None:
            self._wanted = _Wanted(generation, run_dir, self._now_s() + WHOLE_WITHIN_S)

    def want_last(self, message: FlushLast) -> None:
        """Note that the job is over, and that the newest is to be written; or that this is given up."""
        until_s = self._now_s() + message.limit_s
        self._wanted, self.stands_in = None, message.stands_in
        self._last = _Last(message.number, until_s, message.others_s, message.is_job_over)
        if self._running is not None:
            self._running.process.until_s = until_s
            if message.limit_s <= 0:
                self._running.process.stop()
        elif message.limit_s <= 0:
            self.removals.stop()

    def pinned(self, holdings: Holdings) -> frozenset[int]:
        """Return the buffers that stay as they are until their content is written."""
        ids = self._running.buffers if self._running is not None else frozenset()
        if self._wanted is not None:
            ids |= {each.id for each in holdings.buffers if has(each, self._wanted.generation)}
        return ids

    def begin_attempt(self, resumed_step: int | None) -> None:
        """Give up what does not belong to the past of the attempt that begins."""
        self._wanted = None
        self.removals.attempt_begins()
        if self._running is not None and (resumed_step is None or self._running.generation[1] > resumed_step):
            self._running.process.stop()

    def advance(self, holdings: Holdings, descriptors: Mapping[int, int], then: Callable[[], None]) -> None:
        """Start what can be started. `then` is called when buffers are free again."""
        if self._running is not None or self._is_ending:
            return
        chosen: list[HeldBuffer] = []
        if self._last is not None:
            chosen = all_whole(holdings)
            if not chosen and self._is_awaited(holdings):
                self._begin(chosen, holdings, descriptors, then)
            elif self._is_settled(chosen):
                return
        elif self._wanted is not None:
            chosen = [each for each in all_whole(holdings) if has(each, self._wanted.generation)]
        if chosen:
            self._begin(chosen, holdings, descriptors, then)

    def _is_awaited(self, holdings: Holdings) -> bool:
        """Whether nodes that have something in memory may wait for this one, which has nothing, until it says so.

        Not where this node leaves and the others go on: nobody would remove what it says.
        """
        assert self._last is not None
        if not self._last.is_job_over:
            return False
        has_others = 0 < len(holdings.ranks) < holdings.world_size
        return has_others and bool(self.storage) and self._now_s() < self._last.until_s

    def _is_settled(self, chosen: Sequence[HeldBuffer]) -> bool:
        """Whether there is nothing left to do at the end of the job; then that is said."""
        assert self._last is not None
        newest = max((each.part.generation for each in chosen if each.part is not None), default=None)
        stored = self._stored
        is_stored = stored is not None and newest is not None and (stored.attempt, stored.step) >= newest
        if newest is None or is_stored or self._now_s() >= self._last.until_s:
            text = stored.text if stored is not None and is_stored else ""
            if newest is not None and not is_stored:
                text = f"step {newest[1]} is in memory, and there was no time to write it to storage"
            self._end(stored if stored is not None and is_stored else FlushDone(), text)
            return True
        return False

    def _begin(
        self,
        chosen: Sequence[HeldBuffer],
        holdings: Holdings,
        descriptors: Mapping[int, int],
        then: Callable[[], None],
    ) -> None:
        last, opened, parts = self._last, [], []
        try:
            for each in chosen:
                opened.append(read_only(descriptors[each.id]))
                parts.append(offered(each, opened[-1]))
            order = FlushOrder(
                run_id=self.job,
                run_dir=self._wanted.run_dir if self._wanted is not None else "",
                storage=self.storage,
                attempt=holdings.attempt,
                world_size=holdings.world_size,
                ranks=holdings.ranks,
                parts=tuple(parts),
                is_last=last is not None,
                wait_s=OTHERS_S if last is None else max(1.0, min(last.others_s, last.until_s - self._now_s())),
                failed=tuple(self._failed),
            )
            process = self._start(order, opened, last.until_s if last is not None else None)
        except OSError as error:
            self._settle(FlushDone(text=f"no step can be written from memory to storage: {error}"), then)
            return
        finally:
            for each_opened in opened:
                os.close(each_opened)
        newest = max((each.part.generation for each in chosen if each.part is not None), default=(-1, -1))
        self._running = _Running(process, newest, frozenset(each.id for each in chosen), last is not None)
        self._wanted = None
        self._said_at_s = self._now_s()
        self._wait_for(process, then)

    def _wait_for(self, process: Process, then: Callable[[], None]) -> None:
        def heard(answer: FlushAnswer | FlushSilent | Exception) -> None:
            if isinstance(answer, FlushProgress):
                self._say_how_far(answer)
                self._wait_for(process, then)
            elif isinstance(answer, FlushSilent):
                self._say_that_it_stands(answer)
                self._wait_for(process, then)
            else:
                self._settle(
                    answer if isinstance(answer, FlushDone) else FlushDone(text=str(answer), is_left=True), then
                )

        self._run(process.next, heard, is_long=True)

    def _say_how_far(self, progress: FlushProgress) -> None:
        now_s = self._now_s()
        if self._last is not None and now_s - self._said_at_s >= SAID_EVERY_S:
            self._said_at_s = now_s
            done, of = progress.done_bytes / (1 << 30), progress.of_bytes / (1 << 30)
            self._tell(KeeperNote(text=f"writing step {progress.step} to {progress.url}: {done:.1f} of {of:.1f} GiB"))

    def _say_that_it_stands(self, answer: FlushSilent) -> None:
        if self._running is not None:
            stands = f"nothing of it has been written for {answer.silent_s:.0f} s"
            meanwhile = "" if self._running.is_last else "; training goes on"
            self._tell(KeeperNote(text=f"step {self._running.generation[1]} goes to storage, and {stands}{meanwhile}"))

    def _settle(self, done: FlushDone, then: Callable[[], None]) -> None:
        running, self._running, self._wanted = self._running, None, None
        self._hangs = running.process if running is not None and not running.process.is_over() else None
        if running is not None:
            self._failed.pop(running.generation, None)
            if done.is_left:
                self._failed[running.generation] = None
        if done.is_stored:
            self._stored = done
        if not (running is not None and running.is_last):
            self._say_trouble(done)
        if self._last is None:
            self._remove_old(done, None, _nothing)
        elif running is None or running.is_last:
            text = done.text
            if running is not None and done.is_left and not text:
                text = f"step {running.generation[1]} was not written from memory to storage: there was no more time"
            self._end(done, text)
        then()

    def _say_trouble(self, done: FlushDone) -> None:
        """Say what went wrong beside a training: once as long as it is the same, now and then, and when it is over."""
        trouble, now_s = done.trouble or done.text, self._now_s()
        if done.is_stored:
            if self._trouble and done.text:
                self._tell(KeeperNote(text=f"{done.text}: storage can be written again"))
            self._trouble = ""
        elif done.text and (trouble != self._trouble or now_s >= self._trouble_again_s):
            self._trouble, self._trouble_again_s = trouble, now_s + SAID_AGAIN_S
            self._tell(KeeperNote(text=f"{done.text}; training goes on, and it is tried again when storage is due"))

    def _end(self, done: FlushDone, text: str) -> None:
        """Say what came of the end of the job, once older checkpoints are removed, as far as there is time."""
        assert self._last is not None

        def over() -> None:
            assert self._last is not None
            self._tell(Flushed(number=self._last.number, text=text, is_stored=done.is_stored))
            self._last, self._is_ending = None, False

        self._is_ending = True
        until_s = min(self._last.until_s, self._now_s() + AT_THE_END_S)
        if not (self._last.is_job_over and self._remove_old(done, until_s, over)):
            over()

    def _remove_old(self, done: FlushDone, until_s: float | None, then: Callable[[], None]) -> bool:
        is_job_over = self._last is not None
        return done.remove is not None and self.removals.begin(done.remove, until_s, then, is_job_over=is_job_over)


def _nothing() -> None:
    """Nobody waits for it."""
