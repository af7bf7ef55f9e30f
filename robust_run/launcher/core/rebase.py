"""Clock offset correction: turns the times in an agent's reports into the controller's. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.events import AttemptEnded, FirstStep, NodeEvent, WaitOver
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import Paces, RankEvidence, Sights
from robust_run.launcher.model.start_notes import Starts
from robust_run.report.startup.types import NodeStart
from robust_run.tracer.files.marks import StartMark
from robust_run.tracer.types import FlightSight, Op, RankSight


def rebase(event: NodeEvent, ahead_s: float, now_unix_s: float) -> NodeEvent:
    """Return the event with its monotonic times moved by what the controller's clock is ahead of the agent's.

    What a sensor said is news by the controller's wall clock: people read "5 s ago", whatever the node's says.
    """
    if isinstance(event, (FirstStep, WaitOver)):
        return msgspec.structs.replace(event, at_s=event.at_s + ahead_s)
    if isinstance(event, HealthSeen):
        sign = msgspec.structs.replace(event.event, at_s=event.event.at_s + ahead_s)
        return msgspec.structs.replace(event, event=sign, at_unix_s=now_unix_s)
    if isinstance(event, AttemptEnded):
        ranks = tuple(_rank(rank, ahead_s) for rank in event.ranks)
        return msgspec.structs.replace(event, started_at_s=event.started_at_s + ahead_s, ranks=ranks)
    return event


def _rank(rank: RankEvidence, ahead_s: float) -> RankEvidence:
    def moved(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + ahead_s

    return msgspec.structs.replace(
        rank,
        exited_at_s=rank.exited_at_s + ahead_s,
        signalled_at_s=moved(rank.signalled_at_s),
        spoke_at_s=moved(rank.spoke_at_s),
        raised_at_s=moved(rank.raised_at_s),
    )


def rebased_sights(seen: Sights | Paces | Starts, ahead_s: float) -> Sights | Paces | Starts:
    """Return what an agent sees with its times moved likewise."""
    if isinstance(seen, Starts):
        return Starts(start=_start(seen.start, ahead_s))
    if isinstance(seen, Paces):
        pace = seen.pace
        moved = msgspec.structs.replace(pace, began_s=pace.began_s + ahead_s, ended_s=pace.ended_s + ahead_s)
        clocks = tuple(msgspec.structs.replace(clock, at_s=clock.at_s + ahead_s) for clock in seen.clocks)
        return msgspec.structs.replace(seen, pace=moved, clocks=clocks)
    return msgspec.structs.replace(seen, sights=tuple(_sight(sight, ahead_s) for sight in seen.sights))


def _start(start: NodeStart, ahead_s: float) -> NodeStart:
    def moved(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + ahead_s

    ranks = (
        msgspec.structs.replace(
            rank,
            armed_s=moved(rank.armed_s),
            spans=tuple(StartMark(mark.kind, mark.began_s + ahead_s, mark.ended_s + ahead_s) for mark in rank.spans),
            opened_s=rank.opened_s + ahead_s,
            first_step_s=moved(rank.first_step_s),
        )
        for rank in start.ranks
    )
    return msgspec.structs.replace(
        start,
        seen_s=start.seen_s + ahead_s,
        began_s=start.began_s + ahead_s,
        launched_s=moved(start.launched_s),
        place_began_s=start.place_began_s + ahead_s,
        place_ended_s=start.place_ended_s + ahead_s,
        fetches=tuple(
            msgspec.structs.replace(each, began_s=each.began_s + ahead_s, ended_s=each.ended_s + ahead_s)
            for each in start.fetches
        ),
        ready_s=moved(start.ready_s),
        ranks=tuple(ranks),
    )


def _sight(sight: RankSight, ahead_s: float) -> RankSight:
    trace = sight.trace
    if trace is not None:
        trace = msgspec.structs.replace(
            trace,
            last_at_s=trace.last_at_s + ahead_s,
            ops=tuple(_op(op, ahead_s) for op in trace.ops),
            marks=tuple(msgspec.structs.replace(mark, at_s=mark.at_s + ahead_s) for mark in trace.marks),
        )
    return msgspec.structs.replace(
        sight,
        ended_at_s=None if sight.ended_at_s is None else sight.ended_at_s + ahead_s,
        trace=trace,
        nccl_shift_s=sight.nccl_shift_s + ahead_s,
        nccl_log=tuple(msgspec.structs.replace(note, at_s=note.at_s + ahead_s) for note in sight.nccl_log),
        recorded=tuple(_op(op, ahead_s) for op in sight.recorded),
        flight=None if sight.flight is None else _flight(sight.flight, ahead_s),
    )


def _flight(sight: FlightSight, ahead_s: float) -> FlightSight:
    def moved(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + ahead_s

    groups = (msgspec.structs.replace(group, open_since_s=moved(group.open_since_s)) for group in sight.groups)
    return msgspec.structs.replace(
        sight, at_s=sight.at_s + ahead_s, moved_at_s=moved(sight.moved_at_s), groups=tuple(groups)
    )


def _op(op: Op, ahead_s: float) -> Op:
    return msgspec.structs.replace(
        op,
        at_s=op.at_s + ahead_s,
        waiting_at_s=None if op.waiting_at_s is None else op.waiting_at_s + ahead_s,
        done_at_s=None if op.done_at_s is None else op.done_at_s + ahead_s,
    )
