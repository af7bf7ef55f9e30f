"""What is held against the job's nodes (`health.ladder.suspicion`), kept in the ladder's state. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.health.checks.types import CheckJudgement
from robust_run.health.ladder import suspicion
from robust_run.health.ladder.types import LadderPolicy
from robust_run.health.rules.types import LadderTimes
from robust_run.launcher.core.diagnosis.rule_book import book_of
from robust_run.launcher.core.ladder.ladder_state import LadderState
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import CorePolicy, JobState


def times_of(policy: CorePolicy) -> LadderTimes:
    """Return the durations that the ladder goes by: the defaults, or as the file of rules says."""
    return book_of(policy).ladder


def hosts(state: JobState) -> tuple[str, ...]:
    """Return the names of the newest attempt's nodes."""
    return tuple(dict.fromkeys(name_of(state, each.node) for each in state.layout))


def to_blame(state: JobState, nodes: Iterable[str]) -> tuple[str, ...]:
    """Return those of a verdict's nodes that are in the job; none where it names all of them: then it says nothing of any."""
    there = hosts(state)
    named = tuple(name for name in dict.fromkeys(nodes) if name in there)
    return named if len(named) < len(there) else ()


def is_suspect(policy: CorePolicy, ladder_state: LadderState, names: tuple[str, ...], now_s: float) -> bool:
    """Whether enough is held against these nodes together for them to be checked."""
    half_life_s = times_of(policy).half_life_s
    return suspicion.held_together(ladder_state.suspicions, names, now_s, half_life_s) >= suspicion.SUSPECT


def blame(
    policy: CorePolicy,
    ladder_state: LadderState,
    names: tuple[str, ...],
    weight: float,
    why: str,
    now_s: float,
    *,
    hung: bool = False,
) -> LadderState:
    """Return the state with that much more held against these nodes together. A job's only node is no suspect: none is better.

    `hung`: ranks of them kept their peers waiting. Nothing else makes a node more than suspect.
    """
    if not names or not policy.many:
        return ladder_state
    half_life_s = times_of(policy).half_life_s
    most = float("inf") if hung else suspicion.SUSPECT
    found = suspicion.suspect(ladder_state.suspicions, names, weight, why, now_s, half_life_s, at_most=most)
    return msgspec.structs.replace(ladder_state, suspicions=found)


def checked(policy: CorePolicy, ladder_state: LadderState, judged: CheckJudgement, now_s: float) -> LadderState:
    """Return the state after checks: what they found nothing on is less suspect."""
    if not ladder_state.suspicions:
        return ladder_state
    half_life_s = times_of(policy).half_life_s
    found = suspicion.passed(ladder_state.suspicions, judged.passed, now_s, half_life_s)
    return msgspec.structs.replace(ladder_state, suspicions=found)


def ranked(policy: CorePolicy, state: JobState, ladder_state: LadderState, now_s: float) -> tuple[str, ...]:
    """Return the attempt's nodes that anything is held against, most first."""
    suspected = [name for name in hosts(state) if name in ladder_state.suspicions]
    return suspicion.worst_first(ladder_state.suspicions, suspected, now_s, times_of(policy).half_life_s)


def outstanding(
    policy: CorePolicy, state: JobState, ladder_state: LadderState, blamed: tuple[str, ...], now_s: float
) -> str:
    """Return the one of the blamed that was blamed again and again, and stands out from all nodes of the job."""
    half_life_s = times_of(policy).half_life_s
    one = suspicion.outstanding(ladder_state.suspicions, hosts(state), suspicion.OFTEN, now_s, half_life_s)
    return one if one in blamed else ""


def evict_share(policy: CorePolicy) -> float:
    """Return what share of the nodes rules may evict together: as the command line says, else the file of rules."""
    if policy.max_evict_share is None and policy.health_rules:
        return book_of(policy).limits.max_evict_share
    return LadderPolicy().max_evict_share if policy.max_evict_share is None else policy.max_evict_share
