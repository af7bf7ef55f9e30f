"""Entries: from the leader's log into those of others, until a majority has them. Pure. See `core`."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.succession_words import Append, Appended, Run
from robust_run.orchestrator.rules.raft.members import counting
from robust_run.orchestrator.rules.raft.state import (
    Action,
    Committed,
    Cut,
    Follow,
    Record,
    ReplicaState,
    Say,
    Ship,
    Store,
    StoreAnew,
)
from robust_run.orchestrator.rules.raft.terms import next_term, patience_s

#: A sign of life is sent so often.
BEAT_S = 1.0


def written(state: ReplicaState, term: int, count: int) -> None:
    """Entries of a term are at the end of the log."""
    if state.last_term != term:
        state.runs.append((state.last + 1, term))
    state.last += count


def ship(state: ReplicaState, name: str, now_s: float, *, beat: bool = False) -> Iterator[Action]:
    """Send a voter what it lacks, or a sign of life; one message at a time."""
    other = state.others[name]
    due = beat or other.after < state.last or now_s >= other.acked_s + BEAT_S
    if not other.is_here or other.is_busy or not due:
        return
    if other.after < state.dropped and not other.through:
        other.after, other.through = 0, state.last
    other.is_busy = True
    yield Ship(
        to=name,
        message=Append(
            term=state.term,
            sent_s=now_s,
            after=other.after,
            after_term=state.term_at(other.after),
            committed=state.committed,
            runs=tuple(state.runs) if other.through else (),
            through=other.through,
        ),
    )


def take_entries(state: ReplicaState, who: str, append: Append, now_s: float) -> Iterator[Action]:
    """The leader has said something: take in its entries, as far as they fit what is here."""
    if append.term < state.term:
        yield Say(to=who, message=Appended(term=state.term, sent_s=append.sent_s, ok=False))
        return
    if append.term > state.term:
        yield from next_term(state, append.term, now_s)
    if state.part == "leads":
        return  # there is one leader in a term
    if state.voted != who:
        # It has won this term. On record, for a process that is started again: it has promised to vote for no other for a while.
        state.voted = who
        yield Record()
    if state.leader != who:
        yield Follow(leader=who)
    state.part, state.leader, state.heard_s, state.stand_s = "follows", who, now_s, patience_s(state, now_s)
    if append.runs:
        yield from _append_anew(state, who, append)
        return
    state.anew = None
    if append.after > state.last or state.term_at(append.after) != append.after_term:
        lacks = Appended(term=state.term, sent_s=append.sent_s, ok=False, runs=tuple(state.runs), last=state.last)
        yield Say(to=who, message=lacks)
        return
    new = [each for each in append.entries if state.term_at(each.index) != each.term]
    if new and new[0].index <= state.last:
        yield from _cut(state, new[0].index - 1)
    if new:
        for each in new:
            written(state, each.term, 1)
        state.counting += counting(new)
        yield Store(entries=tuple(new))
    match = append.after + len(append.entries)
    yield from commit(state, min(append.committed, match))
    yield Say(to=who, message=Appended(term=state.term, sent_s=append.sent_s, ok=True, match=match))


def _append_anew(state: ReplicaState, who: str, append: Append) -> Iterator[Action]:
    """The log comes from its beginning. Until it is whole, this voter has what it had."""
    if append.after and append.after != state.anew:
        yield Say(to=who, message=Appended(term=state.term, sent_s=append.sent_s, ok=False))
        return
    reached = append.entries[-1].index if append.entries else append.through
    is_whole = reached >= append.through
    yield StoreAnew(entries=append.entries, begins=append.after == 0, is_whole=is_whole)
    state.anew = None if is_whole else reached
    state.anew_counting = [*(state.anew_counting if append.after else ()), *counting(append.entries)]
    match = 0
    if is_whole:
        state.last = match = reached
        state.runs = [run for run in append.runs if run[0] <= reached]
        state.counting, state.anew_counting = state.anew_counting, []
        state.dropped = max(state.dropped, min(append.committed, reached))
        yield from commit(state, min(append.committed, reached))
    yield Say(to=who, message=Appended(term=state.term, sent_s=append.sent_s, ok=True, match=match, began=reached))


def _cut(state: ReplicaState, after: int) -> Iterator[Action]:
    state.last = after
    state.counting = [each for each in state.counting if each[0] <= after]
    state.runs = [run for run in state.runs if run[0] <= after]
    yield Cut(after=after)


def appended(state: ReplicaState, who: str, answer: Appended, now_s: float) -> Iterator[Action]:
    """A voter has answered the leader: what a majority has is committed."""
    if answer.term > state.term:
        yield from next_term(state, answer.term, now_s)
        return
    if state.part != "leads" or answer.sent_s < state.since_s:
        return  # to what was said in an earlier term
    other = state.others[who]
    other.is_busy = False
    other.acked_s = max(other.acked_s, answer.sent_s)
    if not answer.ok:
        other.through = 0
        other.after = min(common(state, answer.runs, answer.last), other.after)
    elif other.through and not answer.match:
        other.after = answer.began
    else:
        other.through = 0
        other.match = other.after = max(other.match, answer.match)
        confirmed = state.confirmed()
        if confirmed > state.committed and state.term_at(confirmed) == state.term:
            yield from commit(state, confirmed)
    yield from ship(state, who, now_s)


def common(state: ReplicaState, runs: tuple[Run, ...], last: int) -> int:
    """Return up to which index two logs are the same: entries of one index and term are, with all before them."""
    for first, term in reversed(runs):
        ours = next(((begin, end) for begin, end, of in spans(state) if of == term), None)
        if ours is not None and max(first, ours[0]) <= min(last, ours[1]):
            return min(last, ours[1])
        last = first - 1
    return 0


def spans(state: ReplicaState) -> Iterator[tuple[int, int, int]]:
    """Yield the first and the last index of each term in the log."""
    for at, (first, term) in enumerate(state.runs):
        yield first, (state.runs[at + 1][0] - 1 if at + 1 < len(state.runs) else state.last), term


def commit(state: ReplicaState, index: int) -> Iterator[Action]:
    """A majority has all up to an entry."""
    if index > state.committed:
        state.committed = index
        yield Committed(index=index)
