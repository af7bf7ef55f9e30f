"""Reads what all workers of a job print, in the event loop, and sends it on its ways.

The first workers are spawned before asyncio is imported: `OutputRouter.open_rank` needs no loop, `attach` brings one.
Reading never waits for our own readers: a worker is never slowed down by a terminal, a pager or a disk.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from robust_run.launcher.agent.output.lines import OutputTail
from robust_run.launcher.agent.output.wiring import (
    AttemptLogs,
    ChildFds,
    OutputSource,
    Wiring,
    copy_window_size,
    read_available,
)
from robust_run.launcher.model.job import OutputStreams, Std

if TYPE_CHECKING:
    import asyncio

    from robust_run.clock import Clock
    from robust_run.launcher.agent.output.sinks import BoundedWriter, FileSink

READ_BYTES = 256 * 1024
"""Most bytes of one read: then the next stream has its turn."""

IDLE_S = 0.2
"""An unfinished line is shown this long after its last byte."""

CATCH_UP_BYTES = 4 * 1024 * 1024
"""Most bytes read from one stream at once where all of it is wanted: a worker may print faster than we read."""


class _Rank:
    """One worker of one attempt."""

    __slots__ = ("sources", "tail")

    def __init__(self, sources: tuple[OutputSource, OutputSource], tail: OutputTail) -> None:
        self.sources = sources
        self.tail = tail


class _Attempt:
    """What lives as long as an attempt."""

    __slots__ = ("all_over", "logs", "ranks")

    def __init__(self, logs: AttemptLogs) -> None:
        self.logs = logs
        self.ranks: dict[int, _Rank] = {}
        self.all_over: asyncio.Future[None] | None = None

    def open_sources(self) -> list[OutputSource]:
        """Return the streams whose end has not been seen."""
        return [source for rank in self.ranks.values() for source in rank.sources if not source.is_over]


class OutputRouter:
    """The output of all workers of one job, over all its attempts. Everything happens in the thread of the loop."""

    def __init__(
        self,
        streams: OutputStreams,
        role: str,
        *,
        console_out: BoundedWriter,
        console_err: BoundedWriter,
        files: FileSink,
        clock: Clock,
        console_is_terminal: Std,
    ) -> None:
        self._files = files
        self._clock = clock
        self._wiring = Wiring(streams, role, console_out, console_err, console_is_terminal)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._attempts: dict[int, _Attempt] = {}
        self._unfinished: set[OutputSource] = set()
        self._idle_timer: asyncio.TimerHandle | None = None

    def open_rank(self, attempt: int, rank: int, local_rank: int, folder: str | None) -> ChildFds:
        """Return the ends for a worker's stdout and stderr; close them after the spawn, whether it worked or not.

        `folder` (`<run directory>/attempt_N/<rank>`) gets `stdout.log` and `stderr.log`; None: keep no logs. Raises
        PlatformError if the process has no descriptors left; then nothing stays open.
        """
        state = self._attempts.get(attempt)
        if state is None:
            state = self._attempts[attempt] = _Attempt(AttemptLogs(self._files))
            self._forget_before(attempt - 1)
        child, sources, tail = self._wiring.connect(attempt, rank, local_rank, folder, state.logs)
        state.ranks[rank] = _Rank(sources, tail)
        if self._loop is not None:
            for source in sources:
                self._loop.add_reader(source.fd, self._read_once, source)
        return child

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read from now on, in `loop`: all that is open and all that will be."""
        self._loop = loop
        self._files.start()
        for state in self._attempts.values():
            for source in state.open_sources():
                loop.add_reader(source.fd, self._read_once, source)

    def tail(self, attempt: int, rank: int) -> tuple[str, float | None]:
        """Return the end of a worker's stderr, and when its last words began (seconds, monotonic; None: no last words).

        Reads first what is there now, so it is complete once the worker is gone. Also works after `finish_attempt`,
        until the attempt after the next one begins.
        """
        state = self._attempts.get(attempt)
        worker = state.ranks.get(rank) if state is not None else None
        if worker is None:
            return "", None
        for source in worker.sources:
            self._catch_up(source)
        return worker.tail.text(), worker.tail.marker_at_s

    async def finish_attempt(self, attempt: int, patience_s: float) -> None:
        """Read all streams of an attempt to their end, at most for `patience_s`; then close them and its log files.

        A process that outlives the workers may hold a stream open for ever: it is cut off. The disk gets at most
        `patience_s` more.
        """
        import asyncio

        state = self._attempts.get(attempt)
        if state is None:
            return
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self.attach(loop)
        if state.open_sources():
            state.all_over = loop.create_future()
            await asyncio.wait([state.all_over], timeout=patience_s)
        for source in state.open_sources():
            self._catch_up(source)
            self._end(source)
        state.logs.close()
        flushed = loop.create_future()
        self._files.when_flushed(lambda: _resolve_from_thread(loop, flushed))
        await asyncio.wait([flushed], timeout=patience_s)

    def last_output_at_s(self, rank: int) -> float | None:
        """Return when `rank` last printed anything in the latest attempt it is part of; None: nothing yet."""
        for number in sorted(self._attempts, reverse=True):
            worker = self._attempts[number].ranks.get(rank)
            if worker is not None:
                times = [source.channel.last_output_at_s for source in worker.sources]
                return max((at_s for at_s in times if at_s is not None), default=None)
        return None

    def resize(self) -> None:
        """Pass the size of the launcher's terminal on to the workers' (call it on SIGWINCH)."""
        for state in self._attempts.values():
            for source in state.open_sources():
                if source.terminal_fd is not None:
                    copy_window_size(source.terminal_fd, source.fd)

    def say(self, line: str) -> None:
        """Show a line of the launcher's own on its stderr, never inside a worker's line."""
        if not line.isprintable():
            from robust_run.terminal import plain_lines  # seldom, and not before the first worker has started

            line = plain_lines(line)
        self._wiring.console_err.say(line.encode("utf-8", errors="backslashreplace"))

    def _forget_before(self, attempt: int) -> None:
        """Let go of the evidence of attempts that are long over."""
        for number, state in list(self._attempts.items()):
            if number < attempt and not state.open_sources():
                del self._attempts[number]

    def _read_once(self, source: OutputSource) -> int:
        """Read one piece, or see the end; return the number of bytes."""
        if source.is_over:
            return 0
        chunk = read_available(source.fd, READ_BYTES)
        if chunk is None:
            self._end(source)
            return 0
        if chunk:
            source.channel.take(chunk, self._clock.monotonic_s())
            if source.channel.has_unfinished:
                self._unfinished.add(source)
                self._set_idle_timer(IDLE_S)
        return len(chunk)

    def _catch_up(self, source: OutputSource) -> None:
        """Read all that is there now."""
        limit = CATCH_UP_BYTES
        while limit > 0 and (count := self._read_once(source)):
            limit -= count

    def _end(self, source: OutputSource) -> None:
        """Close the stream and give out what is left of it."""
        if source.is_over:
            return
        source.is_over = True
        if self._loop is not None:
            self._loop.remove_reader(source.fd)
        os.close(source.fd)
        self._unfinished.discard(source)
        source.channel.finish()
        state = self._attempts[source.attempt]
        if state.all_over is not None and not state.all_over.done() and not state.open_sources():
            state.all_over.set_result(None)

    def _set_idle_timer(self, delay_s: float) -> None:
        if self._idle_timer is None and self._loop is not None:
            self._idle_timer = self._loop.call_later(delay_s, self._flush_idle)

    def _flush_idle(self) -> None:
        """Show the unfinished lines that are old enough; come again for the others."""
        self._idle_timer = None
        now_s = self._clock.monotonic_s()
        for source in list(self._unfinished):
            last_at_s = source.channel.last_output_at_s
            if last_at_s is None or now_s - last_at_s >= IDLE_S - 0.001 or not source.channel.has_unfinished:
                source.channel.flush_idle()
                self._unfinished.discard(source)
        if self._unfinished:
            times = [source.channel.last_output_at_s or now_s for source in self._unfinished]
            self._set_idle_timer(max(0.001, min(times) + IDLE_S - now_s))


def _resolve_from_thread(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Resolve `future` from another thread; the loop may be gone by then."""

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):  # The loop was closed: no task waits any more.
        loop.call_soon_threadsafe(resolve)
