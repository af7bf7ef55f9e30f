"""Checkpoint survey: asks the nodes of an attempt which checkpoints they see, until a resume point is chosen. The choosing
is pure (`core.resume.choosing`); here is only the asking.

What nodes see is much, so it lives here; the journal gets what was chosen (`ResumeChosen`). Imported where nodes were given a
folder of checkpoints, or hold some in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.ckpt_io.newest import written_by
from robust_run.ckpt_io.seen import below
from robust_run.clock import Clock
from robust_run.launcher.core.membership import awaits_resume, name_of
from robust_run.launcher.core.resume import choosing
from robust_run.launcher.core.resume.choosing import Again, Nothing, ResumeChoice, ResumeWait
from robust_run.launcher.core.resume.looks import Choosing, LookAsked, MemoryWorld
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.resume_events import LookForCheckpoints, NoResumePoint, ResumeChosen

if TYPE_CHECKING:
    from robust_run.launcher.core.resume.parts import HeldWhole

#: People are told of a wait that takes longer.
SAY_AFTER_S = 2.0
#: No timer is set for less: what is a rounding error away has not come yet when it fires.
TICK_S = 0.001
#: A node whose answer is due is not asked again before.
DUE_S = 1.0


class _Round(msgspec.Struct, kw_only=True):
    """One choice under way, and what it waits for."""

    order: LookForCheckpoints
    choosing: Choosing
    due: set[str] = set()
    """Nodes whose answers are awaited."""
    timer: Any = None
    has_said: bool = False


class CheckpointSurvey:
    """The choices under way: one for each attempt that is about to begin."""

    def __init__(
        self,
        *,
        state: JobState,
        clock: Clock,
        send: Callable[[str, Order], None],
        later: Callable[[float, Callable[[], None]], Any],
        tell: Callable[[Event], None],
        say: Callable[[str], None],
        job: str = "",
        failed_unix_s: Callable[[int], float | None] = lambda _: None,
    ) -> None:
        """`job`: what its workers see as ROBUST_JOB, which checkpoints say besides the version of the code.

        `failed_unix_s`: when the failure before an attempt began, where the controller that saw it is gone.
        """
        self._state = state
        self._clock = clock
        self._send = send
        self._later = later
        self._tell = tell
        self._say = say
        self._job = job
        self._failed_unix_s = failed_unix_s
        self._rounds: dict[int, _Round] = {}
        self._number = 0
        self._apart: set[str] = set()
        """Nodes that did not see what an earlier attempt started from: it is not waited for that again."""
        self._own = False

    def begin(self, order: LookForCheckpoints) -> None:
        """Ask nodes of an attempt; those of one that is asked about already, again."""
        for number in [each for each in self._rounds if not awaits_resume(self._state, each)]:
            self._drop(number)
        state, attempt = self._state, order.attempt
        order = msgspec.structs.replace(order, untrusted=tuple(written_by(self._job, each) for each in order.untrusted))
        if attempt not in self._rounds:
            now = Choosing(
                attempt=attempt,
                of=order.of,
                began_s=self._clock.monotonic_s(),
                folder=order.folder,
                avoid=state.passed_over,
                untrusted=order.untrusted,
                apart=set(self._apart),
                own=self._own,
                last=state.last_point,
            )
            if state.asks_memory:
                from robust_run.launcher.core.resume import memory

                now.memory = memory.world_of(state, self._job, attempt)
            self._rounds[attempt] = _Round(order=order, choosing=now)
        self._ask(attempt, order.nodes, order.holders)

    def take(self, node: str, seen: CheckpointsSeen) -> None:
        """Take in what a node sees."""
        round_ = self._rounds.get(seen.attempt)
        now = round_.choosing if round_ is not None else None
        asked = now.asked.get(node, now.holders.get(node)) if now is not None else None
        if round_ is None or asked is None or asked.number != seen.number:
            return
        asked.held, asked.room_bytes = seen.memory, seen.memory_room_bytes
        if seen.look is None:  # its folder is slow: what it sees there is still to come
            return
        asked.look, asked.is_due = seen.look, False
        round_.due.discard(node)
        if not round_.due:  # with thousands of nodes, not after each of them
            self._decide(seen.attempt)

    def _ask(self, attempt: int, nodes: tuple[str, ...], holders: tuple[str, ...] = ()) -> None:
        round_ = self._rounds[attempt]
        names, most = tuple(sorted(round_.choosing.names)), round_.choosing.most
        self._number += 1
        for node in nodes:
            asked = round_.choosing.asked.setdefault(node, LookAsked(number=0))
            asked.number, asked.is_due = self._number, True
            round_.due.add(node)
        for node in holders:
            round_.choosing.holders[node] = LookAsked(number=self._number)
        order = msgspec.structs.replace(round_.order, nodes=(), holders=(), number=self._number, names=names, most=most)
        self._wait(attempt, TICK_S)  # so that an answer that comes at once finds a timer to replace
        for node in nodes:
            self._send(node, order)
        for node in holders:
            self._send(node, msgspec.structs.replace(order, memory_only=True))

    def _decide(self, attempt: int) -> None:
        """Do what follows from what is known by now."""
        round_ = self._rounds.get(attempt)
        if round_ is None:
            return
        if not awaits_resume(self._state, attempt):
            self._drop(attempt)
            return
        now_s = self._clock.monotonic_s()
        round_.choosing.saved = self._state.last_saved
        match self._decision(round_, now_s):
            case ResumeWait(until_s=until_s, why=why):
                self._say_late(round_, why, now_s)
                says_at_s = round_.choosing.began_s + SAY_AFTER_S
                self._wait(attempt, min(until_s, says_at_s if now_s < says_at_s else until_s) - now_s)
            case Again() as again:
                self._say_late(round_, again.why, now_s)
                self._again(attempt, round_, again)
            case ResumeChoice() as choice:
                self._drop(attempt)
                self._chosen(round_, choice, now_s)
            case Nothing(reason=reason, may_pass=may_pass):
                self._drop(attempt)
                self._tell(NoResumePoint(attempt=attempt, reason=reason, may_pass=may_pass))

    def _decision(self, round_: _Round, now_s: float) -> choosing.Next:
        now_unix_s, namer = self._clock.unix_s(), self._namer(round_)
        if round_.choosing.memory is None:
            return choosing.decide(round_.choosing, now_s, now_unix_s, namer)
        from robust_run.launcher.core.resume import memory

        return memory.decide(round_.choosing, now_s, now_unix_s, namer)

    def _namer(self, round_: _Round) -> Callable[[str], str]:
        """Return what names a node for people: its host, and where several agents run on one, its place among the nodes, too."""
        nodes = [*round_.choosing.asked, *round_.choosing.holders]
        hosts = {node: name_of(self._state, node) for node in nodes}
        counts = Counter(hosts.values())
        places = {node: self._state.places.get(node, index) for index, node in enumerate(nodes)}

        def name(node: str) -> str:
            host = hosts.get(node, node)
            return f"{host} (node {places[node]})" if counts[host] > 1 else host

        return name

    def _again(self, attempt: int, round_: _Round, again: Again) -> None:
        """Ask once more, in a moment; a node that has not answered yet is waited for."""
        nodes = tuple(node for node in again.nodes if not round_.choosing.asked[node].is_due)
        if not nodes:
            self._wait(attempt, DUE_S)
            return
        round_.choosing.rounds += 1
        round_.choosing.most = max(round_.choosing.most, again.most)
        round_.choosing.names.update(again.names)
        ask = partial(self._ask_if_wanted, attempt, nodes)
        if again.after_s > 0:
            self._wait(attempt, again.after_s, ask)
        else:
            ask()

    def _ask_if_wanted(self, attempt: int, nodes: tuple[str, ...]) -> None:
        if attempt in self._rounds and awaits_resume(self._state, attempt):
            self._ask(attempt, nodes)
            self._decide(attempt)

    def _wait(self, attempt: int, delay_s: float, then: Callable[[], None] | None = None) -> None:
        round_ = self._rounds[attempt]
        if round_.timer is not None:
            round_.timer.cancel()
        round_.timer = self._later(max(delay_s, TICK_S), then or partial(self._decide, attempt))

    def _say_late(self, round_: _Round, why: str, now_s: float) -> None:
        if why and not round_.has_said and now_s - round_.choosing.began_s >= SAY_AFTER_S:
            round_.has_said = True
            self._say(f"attempt {round_.order.attempt} is not started yet: {why}")

    def _drop(self, attempt: int) -> None:
        round_ = self._rounds.pop(attempt)
        if round_.timer is not None:
            round_.timer.cancel()

    def _chosen(self, round_: _Round, choice: ResumeChoice, now_s: float) -> None:
        if choice.memory is not None and round_.choosing.memory is not None:
            self._chosen_in_memory(round_, round_.choosing.memory, choice.memory, choice, now_s)
            return
        self._apart = {*choice.apart}
        self._own = choice.is_own
        seen = choice.seen
        if seen is None:
            self._tell(ResumeChosen(attempt=round_.order.attempt, passed_over=choice.passed_over, unsure=choice.unsure))
            return
        self._tell(
            ResumeChosen(
                attempt=round_.order.attempt,
                source="storage",
                step=seen.step,
                uuid="" if choice.is_own else seen.uuid,
                name=seen.name,
                address=below(round_.order.folder, seen.name),
                created_unix_s=seen.created_s,
                steps_lost=self._steps_lost(seen.step),
                lost_s=self._lost_s(round_.order.attempt, seen.created_s, now_s),
                passed_over=choice.passed_over,
                unsure=choice.unsure,
            )
        )

    def _chosen_in_memory(
        self, round_: _Round, world: MemoryWorld, held: HeldWhole, choice: ResumeChoice, now_s: float
    ) -> None:
        from robust_run.launcher.core.resume import memory

        attempt, point = round_.order.attempt, memory.point(world, held)
        self._tell(
            ResumeChosen(
                attempt=attempt,
                source=point.source,
                step=point.step,
                uuid=point.uuid,
                name=point.name,
                address=point.address,
                created_unix_s=point.created_unix_s,
                steps_lost=self._steps_lost(point.step),
                lost_s=self._lost_s(attempt, held.created_s, now_s),
                passed_over=choice.passed_over,
                unsure=choice.unsure,
                elsewhere=held.elsewhere,
                saved_world_size=held.saved_by,
                world_size=world.world_size if held.saved_by else 0,
            )
        )

    def _steps_lost(self, step: int | None) -> int | None:
        reached = self._state.reached_step
        return reached - step if reached is not None and step is not None and step <= reached else None

    def _lost_s(self, attempt: int, created_unix_s: float, now_s: float) -> float | None:
        failed_at_s = self._state.failed_at_s
        if failed_at_s is not None:
            failed_unix_s: float | None = self._clock.unix_s() - (now_s - failed_at_s)
        else:
            failed_unix_s = self._failed_unix_s(attempt)
        return round(max(failed_unix_s - created_unix_s, 0.0), 3) if failed_unix_s is not None else None
