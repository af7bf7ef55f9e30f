"""Hang detector of a node: looks at its ranks' rings, says when one waits too long, collects evidence when it is asked to.

What it reads was written by the user's processes: the readers never raise for what they find. Reading costs microseconds, and
only what changes is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.agent.watching.ended_waits import EndedWaits
from robust_run.launcher.agent.workers.workers import Worker
from robust_run.launcher.model.actions import Collect
from robust_run.launcher.model.events import HangSuspected, NodeEvent, WaitOver
from robust_run.launcher.model.job import JobSpec, RankEvidence
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.tracer.files import ring
from robust_run.tracer.files.steps import REDUCED_SUFFIX
from robust_run.tracer.suspicion import LOOK_S, RingHeartbeat, Suspicion
from robust_run.tracer.types import RankSight

#: When the workers' own imports are over, mostly.
PREPARE_S = 2.0

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.agent.nccl.watch import NcclWatch
    from robust_run.launcher.agent.nccl.windows import NcclWindows
    from robust_run.launcher.agent.watching.flight_watch import FlightWatch
    from robust_run.launcher.agent.watching.rank_sights import RankSights
    from robust_run.launcher.agent.watching.reduced_watch import ReducedWatch
    from robust_run.launcher.model.start_notes import Seen


def import_what_failures_need() -> None:
    """Import now what is needed when a rank fails: then every millisecond is one of a restart."""
    import shutil  # noqa: F401

    from robust_run.launcher.agent.watching import rank_sights  # noqa: F401
    from robust_run.tracer import verdict  # noqa: F401
    from robust_run.tracer.sight import collect  # noqa: F401


class RankWatch:
    """The ranks of one attempt on this node."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it looks at, and with what
        self,
        attempt: int,
        node: str,
        workers: Sequence[Worker],
        run_directory: RunDirectory,
        clock: Clock,
        spec: JobSpec,
        report: Callable[[NodeEvent], None],
        deliver: Callable[[Seen], None],
        harmless: Harmless,
        world_size: int = 0,
        ras_address: str = "",
    ) -> None:
        """`ras_address`: where NCCL's RAS of this job listens on this node; empty: it is not asked."""
        from robust_run.launcher.agent.watching.pacing import Pacing  # after the workers have been started
        from robust_run.tracer.plugin.layout import SUFFIX

        self._attempt = attempt
        self._node = node
        self._workers = workers
        self._run_directory = run_directory
        self._clock = clock
        self._report = report
        self._deliver = deliver
        self._harmless = harmless
        self._round_s = spec.slow_round_s
        self._suspicion = Suspicion(spec.hang_after_s)
        self._ended_waits = EndedWaits()
        self._ras_address = ras_address
        nccl_files = {worker.rank: self._file(worker.rank, SUFFIX) for worker in workers}
        self._nccl: NcclWatch | None = None
        self._windows: NcclWindows | None = None
        if spec.trace_nccl != "off":
            from robust_run.launcher.agent.nccl.watch import NcclWatch

            self._nccl = NcclWatch(
                attempt=attempt,
                node=node,
                world_size=world_size,
                paths=nccl_files,
                after_s=spec.hang_after_s,
                clock=clock,
                report=report,
                harmless=harmless,
            )
        if self._nccl is not None and self._round_s > 0:
            from robust_run.launcher.agent.nccl.windows import NcclWindows

            self._windows = NcclWindows(
                attempt=attempt,
                world_size=world_size,
                paths=nccl_files,
                clock=clock,
                deliver=deliver,
                harmless=harmless,
            )
        self._reduced = self._watch_of_reduced() if spec.check_reduced_steps else None
        self._hang_after_s = spec.hang_after_s
        self._flight: FlightWatch | None = None
        self._readers: dict[int, ring.RingReader] = {}
        traced = nccl_files if self._nccl is not None else {}
        self._pacing = Pacing(
            attempt, self._round_s, workers, self._readers, traced, run_directory, clock, deliver, harmless
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._preparing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def _watch_of_reduced(self) -> ReducedWatch:
        from robust_run.launcher.agent.watching.reduced_watch import ReducedWatch

        files = {worker.rank: self._file(worker.rank, REDUCED_SUFFIX) for worker in self._workers}
        return ReducedWatch(self._attempt, files, self._deliver, self._harmless)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look from now on."""
        self._loop = loop
        self._timer = loop.call_later(LOOK_S, self._look)
        self._preparing = loop.call_later(PREPARE_S, self._harmless.run, self._prepare)
        if self._nccl is not None:
            self._nccl.start(loop)
        if self._windows is not None:
            self._windows.start(loop)
        if self._reduced is not None:
            self._reduced.start(loop)
        if self._round_s > 0:
            self._pacing.start(loop)

    def _prepare(self) -> None:
        assert self._loop is not None
        import_what_failures_need()
        from robust_run.launcher.agent.watching.flight_watch import FlightWatch

        self._flight = FlightWatch(
            attempt=self._attempt,
            node=self._node,
            steps_files={worker.rank: self._file(worker.rank, "") for worker in self._workers},
            after_s=self._hang_after_s,
            clock=self._clock,
            report=self._report,
            harmless=self._harmless,
        )
        self._pacing.flight = self._flight
        self._flight.start(self._loop)

    def stop(self) -> None:
        """Look no more: the attempt is being ended."""
        self._pacing.stop()
        for timer in (self._timer, self._preparing):
            if timer is not None:
                timer.cancel()
        if self._flight is not None:
            self._flight.stop()
        if self._nccl is not None:
            self._nccl.stop()
        if self._windows is not None:
            self._windows.stop()
        if self._reduced is not None:
            self._reduced.stop()
        for task in tuple(self._tasks):
            task.cancel()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _look(self) -> None:
        assert self._loop is not None
        if self._harmless.run(self._look_now):
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look_now(self) -> None:
        now_s = self._clock.monotonic_s()
        beats = {worker.rank: beat for worker in self._workers if (beat := self._beat(worker, now_s)) is not None}
        self._pacing.waiting_since_s = min(
            (beat.waiting_since_s for beat in beats.values() if beat.waiting_since_s is not None), default=None
        )
        long_wait = self._suspicion.look(beats, now_s, self._ended_waits.failed)
        if self._suspicion.over is not None:
            over = WaitOver(attempt=self._attempt, node=self._node, number=self._suspicion.over, at_s=now_s)
            self._report(over)
        if long_wait is not None:
            self._report(
                HangSuspected(
                    attempt=self._attempt,
                    node=self._node,
                    rank=long_wait.rank,
                    waited_s=round(long_wait.waited_s, 3),
                    after_s=round(long_wait.after_s, 3),
                    number=long_wait.number,
                )
            )

    def _beat(self, worker: Worker, now_s: float) -> RingHeartbeat | None:
        if worker.exit_code is not None:
            self._ended_waits.ended(worker.rank, worker.exit_code)
            return None
        reader = self._readers.get(worker.rank)
        if reader is None:
            reader = self._readers[worker.rank] = ring.RingReader(self._file(worker.rank, ".ring"))
        header = reader.header()
        nccl_events, since_s = self._nccl.look(worker.rank, now_s) if self._nccl is not None else (0, None)
        if header is None or header.pid == 0:
            return RingHeartbeat(nccl_events, 0, since_s) if nccl_events else None
        self._ended_waits.look(worker.rank, header, reader)
        waits = [since for since in (header.waiting_since_s, since_s) if since is not None]
        if self._flight is not None:
            under_way_s = self._flight.look(worker.rank, header, reader, now_s)
            waits += [under_way_s] if under_way_s is not None and not waits else []
        return RingHeartbeat(header.events + nccl_events, header.steps, min(waits, default=None))

    def _file(self, rank: int, suffix: str) -> str:
        return f"{self._run_directory.steps_file(self._attempt, rank)}{suffix}"

    # --- evidence

    def collect(self, order: Collect) -> None:
        """Look at all ranks and deliver what is seen, a moment later."""
        assert self._loop is not None
        if self._windows is not None:
            self._windows.everybody()
        task = self._loop.create_task(self._sights().collect(order, self._ras_address, self._deliver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def last_sights(self, ranks: Sequence[RankEvidence], ops: int, flows: int) -> tuple[RankSight, ...]:
        """Return what the rings and traces of an attempt that has ended say, if a rank failed by itself."""
        return self._sights().last(ranks, ops, flows)

    def _sights(self) -> RankSights:
        from robust_run.launcher.agent.watching.rank_sights import RankSights

        notes = self._nccl.notes if self._nccl is not None else None
        clocks = self._flight.sight if self._flight is not None else None
        return RankSights(self._attempt, self._workers, self._run_directory, self._harmless, notes, clocks)

    def keep(self) -> None:
        """Copy the rings to the run directory, for timelines; what cannot be copied is left out."""
        from robust_run.launcher.agent.watching import ring_files

        ring_files.keep(self._run_directory, self._attempt, [worker.rank for worker in self._workers])

    def forget(self) -> None:
        """Remove what the ranks wrote to: a job that starts again for months must not fill the memory."""
        from robust_run.launcher.agent.watching import ring_files

        ring_files.forget(self._run_directory, self._attempt, [worker.rank for worker in self._workers])
