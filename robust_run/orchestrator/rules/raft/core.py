"""Decisions of one voter: (state, event, now) to the next state and what is to be done. Pure, deterministic. See the package
for why.

Raft (Ongaro and Ousterhout 2014): 5.2 elections, 5.3 replication, 5.4.1 who may be elected, 5.4.2 what is committed. Different
here:

- A voter asks first whether it would be elected (`is_try`, thesis 9.6), so one that was cut off does not count up the term.
- It votes for nobody for `VOTE_WAIT_S` after it heard the leader, or began; the leader itself excepted, whose process was started
  again: it says by asking that it leads no more; and a leader that has resigned (`terms.resign`).
- A voter that lacks entries says which terms it has where (`runs`), so that one answer finds where both logs part.
- A log that has lost void entries is sent from its beginning, and takes the old one's place once it is whole: what the voter had
  confirmed is never missing in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.succession_words import (
    LEAD_S,
    STAGGER_S,
    TRY_AGAIN_S,
    Append,
    Appended,
    AskVote,
    Resigned,
    Vote,
)
from robust_run.orchestrator.rules.raft.appending import appended, commit, ship, take_entries, written
from robust_run.orchestrator.rules.raft.members import counting, next_entry
from robust_run.orchestrator.rules.raft.state import (
    Action,
    Came,
    Dropped,
    Event,
    Heard,
    Leaves,
    Other,
    Record,
    ReplicaState,
    Resign,
    Say,
    Store,
    Tick,
    Went,
    Wrote,
)
from robust_run.orchestrator.rules.raft.terms import let_go, patience_s, resign, stop
from robust_run.orchestrator.rules.raft.voting import ask_all, asked, elected, lead, voted


def begin(state: ReplicaState, now_s: float) -> None:
    """A process of this voter begins. Who led, or stood for election, in the last term that it knows stands again at once, and
    votes at once.
    """
    state.part, state.leader = "follows", ""
    has_heard_none = state.voted == state.name  # whoever has led since would be on record
    state.heard_s = float("-inf") if has_heard_none else now_s
    state.others = {name: Other() for name in state.seats if name != state.name}
    state.stand_s = now_s if has_heard_none else patience_s(state, now_s)


def lead_first(state: ReplicaState, now_s: float) -> list[Action]:
    """Lead without an election: the node that founded the job, whose term is the first. It has told nobody of voters yet."""
    return list(lead(state, now_s))


def found(state: ReplicaState, voters: tuple[str, ...], now_s: float) -> list[Action]:
    """The node that founded the job, and was its only voter, has others from now on."""
    state.seats = voters
    state.others = {name: Other(after=state.last) for name in voters if name != state.name}
    state.since_s = now_s
    return [Record()]


def step(state: ReplicaState, event: Event, now_s: float) -> list[Action]:
    """Change the state by one event; return what is to be done now."""
    return list(_take(state, event, now_s))


def _take(state: ReplicaState, event: Event, now_s: float) -> Iterator[Action]:
    match event:
        case Wrote():
            written(state, state.term, 1)
            yield from commit(state, state.last if state.majority == 1 else 0)
        case Dropped():
            state.dropped = max(state.dropped, event.index)
        case Came():
            yield from _came(state, event.name, now_s)
        case Went():
            other = state.others[event.name]
            other.is_here, other.is_busy, other.through = False, False, 0
        case Leaves() if event.name in state.others:
            state.others[event.name].is_leaving = event.is_leaving
            yield from _tick(state, now_s)
        case Leaves():
            pass
        case Resign():
            yield from resign(state, now_s)
        case Heard():
            yield from _heard(state, event, now_s)
        case Tick():
            yield from _tick(state, now_s)


def _tick(state: ReplicaState, now_s: float) -> Iterator[Action]:
    if state.part == "leads":
        if not state.may_write(now_s):
            yield from stop(state, f"no majority of its voters has answered for {LEAD_S:.0f} s", now_s)
            return
        entry = next_entry(state, now_s)
        if entry is not None:
            written(state, entry.term, 1)
            state.counting += counting((entry,))
            yield Store(entries=(entry,))
            yield from commit(state, state.last if state.majority == 1 else 0)
        for name in state.others:
            yield from ship(state, name, now_s)
    elif (
        now_s >= state.stand_s and state.stands and state.last and state.name in state.voters
    ):  # without a log there is nothing to lead on with
        state.part, state.leader, state.is_try, state.granted = "stands", "", True, (state.name,)
        state.stand_s = now_s + TRY_AGAIN_S + STAGGER_S * state.seats.index(state.name) / 2
        yield from ask_all(state, state.term + 1)
        yield from elected(state, now_s)


def _came(state: ReplicaState, name: str, now_s: float) -> Iterator[Action]:
    other = state.others[name]
    other.is_here, other.is_busy, other.through = True, False, 0
    if state.part == "leads":
        other.after = other.match or state.last
        yield from ship(state, name, now_s, beat=True)
    elif state.part == "stands":
        term = state.term + 1 if state.is_try else state.term
        question = AskVote(term=term, last=state.last, last_term=state.last_term, is_try=state.is_try)
        yield Say(to=name, message=question)


def _heard(state: ReplicaState, heard: Heard, now_s: float) -> Iterator[Action]:
    if heard.name not in state.seats or heard.name == state.name:
        return
    match heard.message:
        case AskVote() as question:
            yield from asked(state, heard.name, question, now_s)
        case Vote() as vote:
            yield from voted(state, heard.name, vote, now_s)
        case Append() as append:
            yield from take_entries(state, heard.name, append, now_s)
        case Appended() as answer:
            yield from appended(state, heard.name, answer, now_s)
        case Resigned(term=term):
            let_go(state, heard.name, term, now_s)
