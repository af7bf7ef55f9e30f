"""What became of the members of a job, told from its journal: when each ran, was down and came back. Pure.

The core is run over the journal once more, so that what is told here is what the leader knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from robust_run.orchestrator.model.command import run_name
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.state import UP, JobState, Member
from robust_run.orchestrator.model.words import (
    Action,
    Changed,
    Event,
    Finish,
    Line,
    NodeGone,
    RankEnded,
    RankGone,
    RankReady,
    SayLine,
    StartMember,
    WorldEnded,
    WorldFailed,
    WorldRuns,
    code_text,
)
from robust_run.orchestrator.people.views.telling import Teller
from robust_run.orchestrator.rules import core
from robust_run.roles.view_words import RolesView

StretchKind = Literal["starts", "runs", "down", "ends"]
"""starts: a launcher begins. runs: all its workers do. down: they failed, and it has not come back. ends: it was told to.

Workers that end because somebody asked for another start, or for other code, were told to.
"""

#: The end of a rank that is followed by the word that its world failed within so long is the beginning of that failure.
ONSET_S = 30.0


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A member, in one way, for a time. Times are seconds since the epoch."""

    kind: StretchKind
    begin_s: float
    end_s: float
    generation: int = 0


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of a member that were lost."""

    at_s: float
    """When the first of them ended."""
    member: str
    run: str
    """Its run directory, below `members`."""
    sentence: str
    back_s: float | None = None
    """When the member could be relied on again; None: it is not back."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, in words."""

    at_s: float
    text: str


class MemberCourse(msgspec.Struct, frozen=True, kw_only=True):
    """One member."""

    name: str
    role: str
    stretches: tuple[Stretch, ...] = ()
    runs: tuple[str, ...] = ()
    """Run directories of all its launchers, below `members`, oldest first."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A whole job."""

    begun_s: float = 0.0
    known_s: float = 0.0
    """Until when this is known: now, of a job that is led; else the last line."""
    ended_s: float | None = None
    members: tuple[MemberCourse, ...] = ()
    losses: tuple[Loss, ...] = ()
    """Oldest first."""
    moments: tuple[Moment, ...] = ()


class RolesNow(msgspec.Struct, frozen=True, kw_only=True):
    """A job at this moment, and what became of it before."""

    view: RolesView
    history: History
    now_s: float
    """Seconds since the epoch."""


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of a member end, and others are to come."""

    name: MemberName
    serial: int
    sentence: str
    was_asked: bool = False
    """No failure, and no loss: somebody wanted it."""


class _Open(msgspec.Struct, kw_only=True):
    """What is known of a member so far."""

    role: str
    stretches: list[Stretch]
    runs: list[str]
    kind: StretchKind | None = None
    since_s: float = 0.0
    generation: int = 0
    fails: bool = False
    """Its workers have failed, and the next do not run yet."""
    was_asked: bool = False
    """They were told to end for others, which do not run yet."""
    ended_s: float | None = None
    """When a rank of this generation ended first, within `ONSET_S`."""
    loss: int | None = None
    """Which loss it is not back from."""


class Historian:
    """Takes in a journal line by line."""

    def __init__(self, spec: RolesSpec) -> None:
        self.spec, self.state = spec, JobState()
        self.members: dict[MemberName, _Open] = {}
        self.losses: list[Loss] = []
        self.moments: list[Moment] = []
        self.begun_s: float | None = None
        self.ended_s: float | None = None
        self._last_s = 0.0
        self._teller = Teller()

    def history(self, now_s: float | None = None) -> History:
        """Return what is known so far. `now_s`: of a job that is led; None: what goes on is known until the last line."""
        known_s = self.ended_s if self.ended_s is not None else max(now_s or 0.0, self._last_s)
        members = (
            MemberCourse(
                name=str(name),
                role=known.role,
                stretches=(*known.stretches, *_last(known, known_s)),
                runs=tuple(known.runs),
            )
            for name, known in self.members.items()
        )
        return History(
            begun_s=self.begun_s or 0.0,
            known_s=known_s,
            ended_s=self.ended_s,
            members=tuple(members),
            losses=tuple(sorted(self.losses, key=lambda loss: loss.at_s)),
            moments=tuple(self.moments),
        )

    def take(self, line: Line) -> None:
        """Take in a line."""
        event, at_s = line.event, line.at
        self._last_s = max(self._last_s, at_s)
        if event is None:
            return
        self.begun_s = at_s if self.begun_s is None else self.begun_s
        failed, phase = list(self._failed_by(event, at_s)), self.state.phase
        is_old = self._teller.is_old(self.state, event)
        actions = core.step(self.spec, self.state, event, line.mono)
        for failure in failed:
            self._lost(failure, at_s)
        for action in actions:
            if isinstance(action, StartMember):
                known = self._of(self.state.members[action.member])
                known.runs.append(run_name(action))
                known.fails = False
            elif isinstance(action, SayLine):
                self.moments.append(Moment(at_s=at_s, text=action.text))
            elif isinstance(action, Finish):
                self.ended_s = at_s
        said = any(isinstance(action, SayLine) for action in actions)
        told = self._teller.words(self.state, event, phase, is_said=said or is_old)
        self.moments += [Moment(at_s=at_s, text=text) for text in told]
        for member in self._changed(event, actions, phase):
            self._follow(member, at_s)

    def _changed(self, event: Event, actions: tuple[Action, ...], phase: str) -> Iterable[Member]:
        """Return members that may stand in another way now."""
        if self.state.phase != phase or not isinstance(
            event, WorldRuns | WorldFailed | RankReady | RankGone | RankEnded
        ):
            return self.state.members.values()
        named = {event.member, *(action.member for action in actions if isinstance(action, StartMember | Changed))}
        return [self.state.members[name] for name in named if name in self.state.members]

    def _of(self, member: Member) -> _Open:
        return self.members.setdefault(member.name, _Open(role=member.name.role, stretches=[], runs=[]))

    def _failed_by(self, event: Event, at_s: float) -> Iterator[_Failure]:
        """Yield whose workers end by an event that is about to be taken in."""
        if self.state.phase != "going":
            return
        if isinstance(event, NodeGone):
            for member in self.state.members.values():
                if member.standing in ("starting", "running") and event.node in member.nodes:
                    yield _Failure(name=member.name, serial=member.serial, sentence=f"its node {event.node} is gone")
            return
        if not isinstance(event, RankEnded | WorldFailed | WorldEnded):
            return
        known_member = self.state.members.get(event.member)
        if known_member is None or known_member.serial != event.serial:
            return
        if known_member.standing not in ("starting", "running"):
            return
        if isinstance(event, WorldEnded) and event.code:
            why = event.sentence or f"its launcher ended with {code_text(event.code)}"
            yield _Failure(name=event.member, serial=event.serial, sentence=why)
        elif isinstance(event, WorldFailed) and event.attempt >= known_member.attempt:
            yield _Failure(name=event.member, serial=event.serial, sentence=event.sentence, was_asked=event.was_asked)
        elif isinstance(event, RankEnded) and event.attempt == known_member.attempt:
            known = self._of(known_member)
            if known.ended_s is None or at_s - known.ended_s > ONSET_S:
                known.ended_s = at_s

    def _lost(self, failure: _Failure, at_s: float) -> None:
        name, known = failure.name, self.members[failure.name]
        known.was_asked, known.fails = failure.was_asked, not failure.was_asked
        if known.loss is not None:
            return  # its launcher has given up what its workers began
        onset_s = known.ended_s if known.ended_s is not None and at_s - known.ended_s <= ONSET_S else at_s
        if failure.was_asked:
            _cut(known, "ends", onset_s)
            return
        known.loss = len(self.losses)
        run = run_name(StartMember(member=name, serial=failure.serial, nodes=()))
        self.losses.append(Loss(at_s=onset_s, member=str(name), run=run, sentence=failure.sentence))
        _cut(known, "down", onset_s)

    def _follow(self, member: Member, at_s: float) -> None:
        known = self._of(member)
        if member.generation != known.generation:
            known.generation, known.fails, known.was_asked, known.ended_s = member.generation, False, False, None
            _cut(known, None, at_s)
        kind: StretchKind | None = None
        if member.standing == "stopping" or (member.standing in UP and known.was_asked):
            kind = "ends"
        elif member.standing == "pausing" or (member.standing in UP and known.fails):
            kind = "down"
        elif member.standing in UP:
            kind = "starts" if member.standing == "starting" else "runs"
        _cut(known, kind, at_s)
        if known.loss is not None and member.is_ready and not known.fails:
            self.losses[known.loss] = msgspec.structs.replace(self.losses[known.loss], back_s=at_s)
            known.loss = None
        elif known.loss is not None and member.standing in ("done", "given_up", "held"):
            known.loss = None


def _cut(known: _Open, kind: StretchKind | None, at_s: float) -> None:
    """End the stretch that goes on, and begin another."""
    if kind != known.kind:
        known.stretches += _last(known, at_s)
        known.kind, known.since_s = kind, at_s


def _last(known: _Open, at_s: float) -> list[Stretch]:
    """Return the stretch that goes on, until then."""
    if known.kind is None or at_s <= known.since_s:
        return []
    return [Stretch(kind=known.kind, begin_s=known.since_s, end_s=at_s, generation=known.generation)]


def history_of(spec: RolesSpec, lines: Iterable[Line], now_s: float | None = None) -> History:
    """Return what became of a job. `now_s`: as for `Historian.history`."""
    historian = Historian(spec)
    for line in lines:
        historian.take(line)
    return historian.history(now_s)
