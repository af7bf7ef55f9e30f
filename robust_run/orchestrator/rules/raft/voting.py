"""Elections: who is voted for, and when one leads. Pure. See `core`."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.succession_words import TRY_AGAIN_S, VOTE_WAIT_S, AskVote, Vote
from robust_run.orchestrator.rules.raft.appending import ship
from robust_run.orchestrator.rules.raft.state import Action, Lead, Other, Record, ReplicaState, Say
from robust_run.orchestrator.rules.raft.terms import next_term


def ask_all(state: ReplicaState, term: int) -> Iterator[Action]:
    """Ask for votes: who does not count may not know it, or that it does."""
    for name in state.seats:
        if name != state.name:
            question = AskVote(term=term, last=state.last, last_term=state.last_term, is_try=state.is_try)
            yield Say(to=name, message=question)


def asked(state: ReplicaState, who: str, question: AskVote, now_s: float) -> Iterator[Action]:
    """Another stands for election, or would."""
    refusal = Vote(term=state.term, granted=False, is_try=question.is_try)
    leads = state.part == "leads" or (state.leader != who and now_s < state.heard_s + VOTE_WAIT_S)
    if leads or question.term < state.term + question.is_try:
        yield Say(to=who, message=refusal)
        return
    has_all = (question.last_term, question.last) >= (state.last_term, state.last) and question.last > 0
    if question.is_try:
        yield Say(to=who, message=Vote(term=question.term, granted=True, is_try=True) if has_all else refusal)
        return
    if question.term > state.term:
        yield from next_term(state, question.term, now_s)
    granted = has_all and state.voted in ("", who)
    if granted:
        state.voted = who
        state.stand_s = max(state.stand_s, now_s + TRY_AGAIN_S)
        yield Record()
    yield Say(to=who, message=Vote(term=state.term, granted=granted))


def voted(state: ReplicaState, who: str, vote: Vote, now_s: float) -> Iterator[Action]:
    """Another has answered that."""
    if not vote.granted and vote.term > state.term:
        yield from next_term(state, vote.term, now_s)
        return
    asked = state.term + 1 if state.is_try else state.term
    if (
        state.part != "stands"
        or not state.stands
        or not vote.granted
        or vote.is_try != state.is_try
        or vote.term != asked
    ):
        return
    state.granted = (*state.granted, who) if who not in state.granted else state.granted
    yield from elected(state, now_s)


def elected(state: ReplicaState, now_s: float) -> Iterator[Action]:
    """Count the votes: with a majority of those that it would have, a voter begins a term; with one of that term it leads."""
    if sum(name in state.voters for name in state.granted) < state.majority:
        return
    if not state.is_try:
        yield from lead(state, now_s)
        return
    state.is_try, state.granted = False, (state.name,)
    state.term, state.voted = state.term + 1, state.name
    yield Record()
    yield from ask_all(state, state.term)
    yield from elected(state, now_s)  # where no other counts


def lead(state: ReplicaState, now_s: float) -> Iterator[Action]:
    """Lead, and say so at once."""
    state.part, state.leader, state.since_s, state.anew = "leads", state.name, now_s, None
    state.others = {name: Other(after=state.last, is_here=other.is_here) for name, other in state.others.items()}
    yield Lead()
    for name in state.others:
        yield from ship(state, name, now_s, beat=True)
