"""What the ranks of a node say of how fast they work, once a round: steps, waits, CPU, what NCCL completed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.agent.workers.workers import Worker
from robust_run.launcher.model.job import Paces
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.tracer.files import phases, ring

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.agent.watching.flight_watch import FlightWatch
    from robust_run.launcher.model.start_notes import Seen
    from robust_run.tracer.nccl.types import CommRate
    from robust_run.tracer.pace.types import Reported
    from robust_run.tracer.plugin.metering import Metering
    from robust_run.tracer.types import RankClocks

#: Ranks of a node whose reports are looked at in a round.
MOST_ASKED = 2


class Pacing:
    """The rounds of one attempt on this node. `nccl_files`: what the plugin writes, by rank; empty: it is not there."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it looks at, and with what
        self,
        attempt: int,
        round_s: float,
        workers: Sequence[Worker],
        readers: Mapping[int, ring.RingReader],
        nccl_files: Mapping[int, str],
        run_directory: RunDirectory,
        clock: Clock,
        deliver: Callable[[Seen], None],
        harmless: Harmless,
    ) -> None:
        """`readers`: of the ranks that are looked at by now."""
        from robust_run.tracer.sight.cpu_limits import CpuLimits

        self._attempt, self._round_s, self._workers, self._readers = attempt, round_s, workers, readers
        self._nccl_files, self._run_directory, self._clock = nccl_files, run_directory, clock
        self._deliver, self._harmless = deliver, harmless
        self._limits = CpuLimits()
        self._metering: Metering | None = None
        self.flight: FlightWatch | None = None
        self.waiting_since_s: float | None = None
        """Since when one of the ranks waits, as was last seen."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pacer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look once a round from now on."""
        self._loop = loop
        self._pacer = loop.call_later(self._round_s, self._pace)

    def stop(self) -> None:
        """Look no more."""
        if self._pacer is not None:
            self._pacer.cancel()

    def _pace(self) -> None:
        assert self._loop is not None
        if self._harmless.run(self._pace_now):
            self._pacer = self._loop.call_later(self._round_s, self._pace)

    def _pace_now(self) -> None:
        """Say how long the ranks' own work took since the round before."""
        from robust_run.tracer.pace.measure import pace_of, timed_pace_of
        from robust_run.tracer.pace.types import NodePace, RankPace, TimedPace

        now_s = self._clock.monotonic_s()
        found: list[RankPace] = []
        clocks: list[RankClocks] = []
        timed: list[TimedPace] = []
        newest: tuple[int, float | None] = (0, None)
        for rank, reader in self._readers.items():
            trace = reader.trace(0)
            if trace is None:
                continue
            if trace.steps > newest[0] and trace.marks:
                newest = trace.steps, round(max(now_s - trace.marks[-1].at_s, 0.0), 3)
            said = self.flight.said(rank, trace.groups) if self.flight is not None else None
            clocks += [said] if said is not None else []
            waits = reader.data_waits()
            pace = pace_of(trace.marks, trace.steps, rank=rank, node="", round_s=self._round_s, data_waits=waits)
            if pace is not None:
                found.append(pace)
            path = f"{self._run_directory.steps_file(self._attempt, rank)}{phases.SUFFIX}"
            steps = phases.read(path) if phases.goes_on(path) else ()
            on_gpu = timed_pace_of(steps, rank=rank, node="", round_s=self._round_s)
            if on_gpu is not None:
                timed.append(on_gpu)
        node = NodePace(self._attempt, "", now_s - self._round_s, now_s, tuple(found), tuple(timed))
        cpu = self._limits.look([worker.pid for worker in self._workers if worker.exit_code is None], now_s)
        since_s = self.waiting_since_s
        paces = Paces(
            pace=node,
            nccl=self._completed(now_s),
            steps=newest[0],
            since_step_s=newest[1],
            cpu=cpu,
            waiting_s=round(max(now_s - since_s, 0.0), 3) if since_s is not None else None,
            clocks=tuple(clocks),
            reported=self._reported(),
        )
        self._deliver(paces)

    def _reported(self) -> Reported | None:
        """Return what the script says of its throughput, on the first rank of those that are looked at that says anything."""
        folder = self._run_directory.reports(self._attempt)
        if not os.path.isdir(folder):
            return None
        from robust_run.health.metrics import reports
        from robust_run.tracer.degradation.reported import reported

        for worker in self._workers[:MOST_ASKED]:
            points = reports.read(reports.file_of(folder, worker.rank)).points
            said = reported([(point.at_s, point.values) for point in points])
            if said is not None:
                return said
        return None

    def _completed(self, now_s: float) -> tuple[CommRate, ...]:
        """Return what NCCL completed since the round before, where it is traced."""
        from robust_run.tracer.plugin.metering import Metering

        if not self._nccl_files:
            return ()
        self._metering = self._metering or Metering()
        return self._metering.look(self._nccl_files, now_s)
