"""What a new term means to a voter, and how long one waits for the leader. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.succession_words import STAGGER_S, VOTE_WAIT_S
from robust_run.orchestrator.rules.raft.state import Action, Record, ReplicaState, StopLeading


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


def patience_s(state: ReplicaState, now_s: float) -> float:
    """Return when this voter stands for election if it hears no leader."""
    return now_s + VOTE_WAIT_S + STAGGER_S * state.seats.index(state.name)
