"""One rank while it is looked at: its processes at several moments, their stacks, and what they used in between."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from robust_run.tracer.sight import processes, source_lines
from robust_run.tracer.sight.fault_signal import REST_S, StacksFile
from robust_run.tracer.sight.flight_recorder import recorded
from robust_run.tracer.sight.freezer import MOUNTS, frozen_by
from robust_run.tracer.sight.links import StuckConnections
from robust_run.tracer.sight.native_threads import acting_threads
from robust_run.tracer.sight.recordings import RING_SUFFIX, read_ring, recording_pid, sight_without_looking
from robust_run.tracer.sight.rest import Rest, at_rest
from robust_run.tracer.sight.spy import Spy
from robust_run.tracer.sight.targets import Target
from robust_run.tracer.sight.wake.access import why_hidden
from robust_run.tracer.sight.wake.asking import needs_chain, wake_readings
from robust_run.tracer.stacks.activity import LOOK_S
from robust_run.tracer.stacks.device_wait import device_wait
from robust_run.tracer.stacks.normal import main_thread
from robust_run.tracer.types import LIFECYCLE, P2P, Op, ProcessSight, RankSight, RankTrace, ThreadStack, ThreadUse
from robust_run.tracer.wake.types import WakeReading

STACKS_SUFFIX = ".stacks"
PAGE_BYTES = 4096
#: Of lost children in a report.
LOST = 8


class SightWorld(msgspec.Struct, frozen=True, kw_only=True):
    """What looking needs of the world; tests hand over their own."""

    root: str = "/proc"
    cgroups: str = MOUNTS
    spy: str | None = None
    """Path of py-spy, "" to look for it, None to do without."""
    by_signal: bool = False
    """Where py-spy tells nothing, processes at rest are asked by signal, which ends waits in C early: see `fault_signal`."""
    monotonic_s: Callable[[], float] = time.monotonic
    unix_s: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class TargetView:
    """One target while it is looked at."""

    def __init__(self, target: Target, ops: int, world: SightWorld, spy: Spy) -> None:
        from robust_run.tracer.files.ring import stacks_signal

        self._target = target
        self._ops = ops
        self._world = world
        self._spy = spy
        self._asked = StacksFile(f"{target.steps_file}{STACKS_SUFFIX}", stacks_signal(), world.monotonic_s, world.root)
        self._first: dict[int, processes.ProcessLook] = {}
        self._last: dict[int, processes.ProcessLook] = {}
        self._main: list[processes.ProcessLook] = []
        self._frozen: dict[int, str] = {}
        self._measured_s: list[float] = []
        self._written_before: dict[int, int] = {}
        self._stacks: dict[int, list[tuple[ThreadStack, ...]]] = {}
        self._sampled: set[int] = set()
        """Processes of which the sample that is being taken has stacks."""
        self._rests: dict[int, Rest] = {}
        """What `at_rest` said of processes just before the newest of their stacks was read."""
        self._rank_pid = target.pid
        self._rested: tuple[float, dict[int, dict[int, float]]] | None = None
        self._calm_s = 0.0
        self._delayed_s: dict[int, dict[int, float]] = {}

    @property
    def pids(self) -> list[int]:
        """Return the processes that there were at the last measurement."""
        return list(self._last)

    @property
    def rank_pid(self) -> int:
        """Return the process that is the rank."""
        return self._rank_pid

    def measure(self) -> None:
        """Read CPU, I/O and state of all processes of the target."""
        if not self._target.is_there:
            return
        root = self._world.root
        first = not self._measured_s
        self._count_delays()
        pids = processes.tree(self._target.pid, root) if first else list(self._first)
        seen = {pid: found for pid in pids if (found := processes.look(pid, root)) is not None}
        self._measured_s.append(self._world.monotonic_s())
        if first:
            self._first = seen
            # A worker may be a shell around the program: the process that records is the rank.
            recorder = recording_pid(self._target)
            self._rank_pid = recorder if recorder in seen else self._target.pid
        self._last = {pid: look for pid, look in seen.items() if look.start_ticks == self._first[pid].start_ticks}
        self._written_before = dict(self._asked.written)
        self._look_for_frozen(first)
        main = processes.look_at_main_thread(self._rank_pid, root)
        self._main = [*self._main, main] if main is not None else []

    def _look_for_frozen(self, first: bool) -> None:
        """Note which processes a cgroup keeps frozen, from the first look on."""
        asked = self._last if first else self._frozen
        found = {pid: frozen_by(pid, self._world.root, self._world.cgroups) for pid in asked if pid in self._last}
        self._frozen = {pid: file for pid, file in found.items() if file}

    def rest(self) -> None:
        """Note for how long threads have waited for a CPU until now, when the process has answered us."""
        if self._target.is_there:
            delays = {pid: processes.delays_s(pid, self._world.root) for pid in self._last}
            self._rested = self._world.monotonic_s(), delays

    def _count_delays(self) -> None:
        """Add for how long threads have waited for a CPU since then: to answer us may take long on a busy machine."""
        if self._rested is None:
            return
        rested_s, before = self._rested
        self._rested = None
        self._calm_s += self._world.monotonic_s() - rested_s
        for pid, delays in before.items():
            found = self._delayed_s.setdefault(pid, {})
            for thread, delay_s in processes.delays_s(pid, self._world.root).items():
                found[thread] = found.get(thread, 0.0) + max(0.0, delay_s - delays.get(thread, delay_s))

    def _starved(self, pid: int, thread: int | None = None) -> float:
        delays_s = self._delayed_s.get(pid, {})
        longest_s = max(delays_s.values(), default=0.0) if thread is None else delays_s.get(thread, 0.0)
        return round(min(1.0, longest_s / self._calm_s), 3) if self._calm_s > 0 else 0.0

    async def sample(self) -> None:
        """Take a sample of the stacks of all processes: from outside, and by signal where that may not be."""
        seen = [look for look in self._last.values() if not look.is_gone]
        await asyncio.gather(*[self._spied(look) for look in seen])
        # A frozen one would only get the signal when it is thawed.
        await self._answers([one for one in seen if one.pid not in self._sampled and one.pid not in self._frozen])
        self._sampled.clear()

    async def _spied(self, look: processes.ProcessLook) -> None:
        """Note the stacks of a process, unless it must be asked. What has not run since the last sample is where it was."""
        root = self._world.root
        before, now = self._rests.pop(look.pid, None), at_rest(look.pid, root)
        if now is not None and now == before:
            self._note(look.pid, self._stacks[look.pid][-1], now)
        elif look.pid == self._rank_pid or processes.is_python(look.pid, root):
            self._note(look.pid, await self._spy.stacks(look.pid), now)

    async def _answers(self, rest: Sequence[processes.ProcessLook]) -> None:
        """Ask one process after the other by signal, those that may be asked."""
        if not self._target.steps_file or not self._world.by_signal:
            return
        rests = {look.pid: found for look in rest if (found := at_rest(look.pid, self._world.root)) is not None}
        if rests:
            await self._world.sleep(REST_S)
        for look in rest:
            if look.pid in rests:
                is_rank = look.pid == self._rank_pid
                self._note(look.pid, await self._asked.stacks(look, rests[look.pid], is_rank), None)

    def _note(self, pid: int, stacks: tuple[ThreadStack, ...], rest: Rest | None) -> None:
        if not stacks:
            return
        self._stacks.setdefault(pid, []).append(stacks)
        self._sampled.add(pid)
        if rest is not None:
            self._rests[pid] = rest

    async def ask_kernel(self) -> tuple[WakeReading, ...]:
        """Return what the rank waits for, where its ring does not tell; several times where that might be a proof."""
        rank = self._last.get(self._rank_pid)
        if (
            rank is None
            or rank.is_gone
            or rank.pid in self._frozen
            or not needs_chain(read_ring(self._target, self._ops))
        ):
            return ()
        return await wake_readings(self._rank_pid, self._world.root, self._world.sleep)

    def _why_hidden(self) -> str:
        """Return why the kernel does not tell what the rank waits for, where its ring does not either."""
        rank = self._last.get(self._rank_pid)
        is_gone = not self._target.is_there or (rank is not None and rank.is_gone)
        if is_gone or self._rank_pid in self._frozen or not needs_chain(read_ring(self._target, self._ops)):
            return ""
        return why_hidden(self._rank_pid, self._world.root)

    async def ask_recorder(self) -> tuple[Op, ...]:
        """Return what torch's flight recorder knows."""
        rank = self._last.get(self._rank_pid)
        if rank is None or rank.state not in "RSD" or rank.pid in self._frozen or not self._target.steps_file:
            return ()  # a stopped one would only cost the time-out
        return await recorded(self._target.steps_file, self._world.monotonic_s, self._world.unix_s)

    def sight(self, entries: tuple[Op, ...], links: StuckConnections) -> RankSight:
        """Return all that was seen."""
        known = sight_without_looking(self._target, read_ring(self._target, self._ops))
        made = (
            any(op.op not in P2P and op.op not in LIFECYCLE for op in known.trace.ops)
            if known.trace is not None
            else False
        )
        return msgspec.structs.replace(
            known,
            trace=self._doubted(known.trace),
            recorded=entries,
            is_silent=made and not entries,
            processes=tuple(self._process(first, links) for first in self._first.values()),
            lost_children=self._lost(),
            hidden=self._why_hidden(),
        )

    def _doubted(self, trace: RankTrace | None) -> RankTrace | None:
        """Return a trace with the doubt that its process runs another program by now, which nobody records."""
        if trace is None or trace.pid not in self._last or self._last[trace.pid].is_gone:
            return trace
        if processes.maps(trace.pid, f"{self._target.steps_file}{RING_SUFFIX}", self._world.root) is not False:
            return trace
        return msgspec.structs.replace(
            trace, doubts=(*trace.doubts, "runs another program than the one that was recorded")
        )

    def _process(self, first: processes.ProcessLook, links: StuckConnections) -> ProcessSight:
        """Return one process with what it used between the first and the last measurement."""
        root = self._world.root
        last = self._last.get(first.pid)
        cpu, io_bytes = self._used(first, last)
        return ProcessSight(
            pid=first.pid,
            parent=first.parent,
            is_rank=first.pid == self._rank_pid,
            command=processes.command_of(first.pid, root),
            state=last.state if last is not None else "X",
            cpu=max(0.0, cpu),
            io_bytes=io_bytes,
            starved=self._starved(first.pid),
            main=self._main_use() if first.pid == self._rank_pid else None,
            # One that is stopped and continued in turns, as cpulimit does it, is not stopped by anybody for good.
            turns=last.turns if last is not None else "",
            stopped_by=last.stopped_by if last is not None and (first.state, first.turns) == ("T", last.turns) else 0,
            stacks=tuple(self._stacks.get(first.pid, ())),
            waits_in=processes.waits_in(first.pid, root) if last is not None else "",
            links=links.of(first.pid) if last is not None else (),
            frozen_by=self._frozen.get(first.pid, ""),
            acting=acting_threads(first.pid, root) if first.pid == self._rank_pid else (),
            gpu_wait=self._gpu_wait() if first.pid == self._rank_pid and last is not None else "",
        )

    def _gpu_wait(self) -> str:
        """Return in what call the rank waits for its GPU; "" where it does not, or has none."""
        pid, root = self._rank_pid, self._world.root
        found = (main_thread(sample) for sample in self._stacks.get(pid, ()))
        stacks = [stack for stack in found if stack is not None]
        if not stacks or not source_lines.uses_gpu(pid, root):
            return ""
        return device_wait(stacks, lambda frame: source_lines.line_of(pid, frame, root))

    def _used(self, first: processes.ProcessLook, last: processes.ProcessLook | None) -> tuple[float, int]:
        """Return CPU and bytes that were used between two looks, without what answering us took."""
        elapsed_s = self._measured_s[-1] - self._measured_s[0]
        if last is None or elapsed_s <= 0:
            return 0.0, 0
        answers = self._written_before.get(first.pid, 0)
        calls = last.call_bytes - first.call_bytes - answers
        # Disks are written to in pages: each answer may begin one, and go on in one that was flushed and counts again.
        pages = 2 * len(self._stacks.get(first.pid, ())) + 1 if answers else 0
        disks = last.disk_bytes - first.disk_bytes - answers - pages * PAGE_BYTES
        cpu = (last.cpu_ticks - first.cpu_ticks) / os.sysconf("SC_CLK_TCK") / elapsed_s
        return cpu, int(max(calls, disks, 0) * LOOK_S / elapsed_s)

    def _main_use(self) -> ThreadUse | None:
        """Return what the rank's main thread used; None where it was not seen at every look."""
        if len(self._main) < max(2, len(self._measured_s)):
            return None
        cpu, io_bytes = self._used(self._main[0], self._main[-1])
        return ThreadUse(cpu=max(0.0, cpu), io_bytes=io_bytes, starved=self._starved(self._rank_pid, self._rank_pid))

    def _lost(self) -> tuple[str, ...]:
        """Return children of the rank that had ended at the first look and were not collected until the last."""
        return tuple(
            f"a child (pid {look.pid}, {processes.command_of(look.pid, self._world.root)}) ended and was not collected"
            for look in self._last.values()
            if look.is_gone and look.parent == self._rank_pid and self._first[look.pid].is_gone
        )[:LOST]
