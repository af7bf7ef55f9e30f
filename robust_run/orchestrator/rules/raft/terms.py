"""What a new term means to a voter, and how long one waits for the leader. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.succession_words import STAGGER_S, VOTE_WAIT_S, Resigned
from robust_run.orchestrator.rules.raft.state import Action, Record, ReplicaState, Say, StopLeading


def next_term(state: ReplicaState, term: int, now_s: float) -> Iterator[Action]:
    """A later term has begun: whoever led in an earlier one leads no more."""
    if state.part == "leads":
        yield from stop(state, "another leads, or is about to", now_s)
    if state.part == "stands":
        state.part, state.stand_s = "follows", patience_s(state, now_s)
    state.term, state.voted, state.leader, state.anew = term, "", "", None
    yield Record()


def stop(state: ReplicaState, why: str, now_s: float) -> Iterator[Action]:
    """Lead no more."""
    state.part, state.leader, state.stand_s = "follows", "", patience_s(state, now_s)
    state.heard_s = now_s
    yield StopLeading(why=why)


def resign(state: ReplicaState, now_s: float) -> Iterator[Action]:
    """Lead no more, and stand for no election: the others are told so, and that this was the leader's last word.

    As Raft's transfer of leadership (Ongaro's thesis, 3.10), but for who follows: whoever of them has all that is committed.
    """
    if state.part != "leads":
        return
    state.stands = False
    stopped = tuple(stop(state, "it leaves the job", now_s))
    for name in state.others:
        yield Say(to=name, message=Resigned(term=state.term))
    yield from stopped


def let_go(state: ReplicaState, who: str, term: int, now_s: float) -> None:
    """The leader has resigned: this voter need not wait for it. One after the other they stand for election."""
    if state.part != "follows" or state.term != term or state.leader != who:
        return
    left = [name for name in state.voters if name != who]
    turn = left.index(state.name) if state.name in left else len(left)
    state.leader, state.heard_s, state.stand_s = "", float("-inf"), now_s + STAGGER_S * turn


def patience_s(state: ReplicaState, now_s: float) -> float:
    """Return when this voter stands for election if it hears no leader."""
    return now_s + VOTE_WAIT_S + STAGGER_S * state.seats.index(state.name)
