"""Flight recorder monitor of a node: how far its ranks are by torch's own count, also in what no call of their rings shows.

What a worker writes after its steps is read from its ring; torch's worker server is asked as `tracer.flight.asking` says. Each
rank is asked one thing at a time, and no answer is waited for by anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.model.events import HangSuspected, NodeEvent
from robust_run.tracer.files.ring import RingHeader, RingReader
from robust_run.tracer.flight.asking import EVERY_S, QUIET_S, AskPlan, Question
from robust_run.tracer.flight.progress import Progress
from robust_run.tracer.flight.types import OF_RECORDER
from robust_run.tracer.sight.flight_recorder import NoRecorderError, counted
from robust_run.tracer.types import TOLD_GROUPS, FlightSight, Group, GroupProgress, RankClocks

#: What a worker writes is read so often.
READ_S = 1.0


class _Rank:
    def __init__(self, every_s: float) -> None:
        self.pid = 0
        self.progress = Progress()
        self.plan = AskPlan(every_s)
        self.is_asked = False
        self.read_s = 0.0

    def begin(self, pid: int) -> None:
        """Forget what another process of the worker did."""
        self.pid, self.progress = pid, Progress()


class FlightWatch:
    """The recorders of one attempt's ranks on this node. `steps_files`: by rank."""

    def __init__(
        self,
        *,
        attempt: int,
        node: str,
        steps_files: Mapping[int, str],
        after_s: float,
        clock: Clock,
        report: Callable[[NodeEvent], None],
        harmless: Harmless,
    ) -> None:
        self._attempt, self._node, self._after_s = attempt, node, after_s
        self._steps_files = steps_files
        self._clock, self._report, self._harmless = clock, report, harmless
        every_s = min(EVERY_S, after_s / 2) if after_s > 0 else EVERY_S
        self._ranks = {rank: _Rank(every_s) for rank in steps_files}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask from now on."""
        self._loop = loop

    def stop(self) -> None:
        """Ask no more."""
        self._loop = None
        for task in tuple(self._tasks):
            task.cancel()

    def look(self, rank: int, header: RingHeader, reader: RingReader, now_s: float) -> float | None:
        """Read and ask what is due; return since when a rank waits for what torch has under way, as of the newest answer."""
        known = self._ranks[rank]
        if header.pid != known.pid:
            known.begin(header.pid)
        if now_s - known.read_s >= READ_S:
            known.read_s = now_s
            found = reader.clocks()
            if found is not None and found[0] <= now_s:
                known.progress.take(found[1], found[0], header.steps)
        if self._loop is not None and not known.is_asked:
            question = known.plan.due(now_s, now_s - header.last_at_s, known.progress.unnamed)
            if question is not None:
                known.is_asked = True
                task = self._loop.create_task(self._ask(rank, known, question, header))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        still = known.progress.still_work(header.steps, now_s)
        if still is not None:
            group = f" of group {still.name}" if still.name else ""
            words = (
                f"has made {still.steps} steps, but completed none of its work{group} for {still.stood_s:.0f} s"
                f" (#{still.completed}; #{still.enqueued} is under way)"
            )
            self._report(
                HangSuspected(
                    attempt=self._attempt,
                    node=self._node,
                    rank=rank,
                    waited_s=0.0,
                    after_s=self._after_s,
                    reason=f"{OF_RECORDER}it {words}",
                )
            )
        return known.progress.waiting_since_s(header.steps, header.last_at_s, now_s)

    async def _ask(self, rank: int, known: _Rank, question: Question, header: RingHeader) -> None:
        progress, asked_s = known.progress, self._clock.monotonic_s()
        try:
            clocks, names = await counted(self._steps_files[rank], question)
            progress.learn(names)
            # Of when it was asked: what came to pass while the answer was on its way may not be in it.
            progress.take(clocks, asked_s, header.steps, on_nccl=question != "gloo_whole")
            now_s = self._clock.monotonic_s()
            matters = asked_s - header.last_at_s >= QUIET_S and any(clock.is_open for clock in clocks)
            known.plan.answered(question, now_s - asked_s, now_s, matters=matters)
        except NoRecorderError:
            known.plan.refused(question)
        except (FileNotFoundError, ConnectionRefusedError):
            known.plan.absent(question, asked_s)
        except (OSError, ValueError, EOFError, asyncio.TimeoutError):
            known.plan.failed(question, self._clock.monotonic_s())
        except Exception as error:
            self._harmless.failed(error)
        finally:
            known.is_asked = False

    def sight(self, rank: int) -> FlightSight | None:
        """Return what is known of a rank; None: nothing."""
        return self._ranks[rank].progress.sight()

    def said(self, rank: int, groups: Sequence[Group]) -> RankClocks | None:
        """Return what the controller compares with what other ranks say. `groups`: those that the rank's ring lists."""
        sight = self.sight(rank)
        if sight is None:
            return None
        named = {group.name: group for group in groups}  # the newest of a name
        found = [_with_members(one, named.get(one.name)) for one in sight.groups if one.comparable]
        return RankClocks(rank, sight.at_s, tuple(found[-TOLD_GROUPS:])) if found else None


def _with_members(progress: GroupProgress, group: Group | None) -> GroupProgress:
    if group is None or not group.ranks:
        return progress
    return msgspec.structs.replace(progress, size=len(group.ranks), first=group.ranks[0], last=group.ranks[-1])
