"""Diagnosis of an attempt's nodes: whom checks are ordered of, and again when others came in their place. Pure."""

from __future__ import annotations

from robust_run.health.checks.types import CHECKS, CheckName
from robust_run.health.ladder.types import LadderDecision
from robust_run.launcher.core.ladder.ladder_state import ladder_state_of
from robust_run.launcher.core.ladder.rungs import decided
from robust_run.launcher.core.membership import is_usable, name_of
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action
from robust_run.launcher.model.check_events import Diagnose

#: What a job's only node is checked for: what says something by itself, within seconds.
LONE: tuple[CheckName, ...] = ("compute", "model", "exchange")


def begin(policy: CorePolicy, state: JobState, decision: LadderDecision) -> list[Action]:
    """Order the checks that a decision of the ladder wants."""
    state.phase, state.deadline_at_s = "diagnosing", None
    there = list(hosts_agents(state).values())
    chosen = tuple(check for check in CHECKS if check in policy.diagnose_checks)
    order = Diagnose(
        attempt=state.attempt,
        nodes=tuple(there),
        checks=chosen or _checks(decision.checks, is_lone=len(there) == 1),
        seconds=decision.seconds,
    )
    return [decided(state, decision), order]


def _checks(fitting: tuple[CheckName, ...], *, is_lone: bool) -> tuple[CheckName, ...]:
    """Return the checks that fit; of a job's only node those that say something by themselves. Empty: all."""
    if not is_lone:
        return fitting
    return tuple(check for check in LONE if check in fitting) or LONE


def hosts_agents(state: JobState) -> dict[str, str]:
    """Return the agents to be checked by the names of their hosts: those of the attempt, or who came in their place."""
    hosts = dict.fromkeys(name_of(state, each.node) for each in state.layout)
    newest = {each.info.name: each.info.id for each in state.members.values() if is_usable(state, each.info.id)}
    return {name: newest[name] for name in hosts if name in newest}


def replaced(policy: CorePolicy, state: JobState, name: str) -> list[Action]:
    """Begin a diagnosis anew where agents came in the place of those it was ordered of: nothing was asked of them yet.

    A job that is resumed has new agents on all hosts, one after the other: the order is given when the last is there.
    """
    agents = hosts_agents(state)
    gone = {name_of(state, each.node) for each in state.layout if not is_usable(state, each.node)}
    known = {each.node for each in state.layout}
    is_whole = all(agent not in known for agent in agents.values())
    if name not in agents or not (is_whole or name in gone):
        return []
    return begin_again(policy, state)


def begin_again(policy: CorePolicy, state: JobState) -> list[Action]:
    """Begin a diagnosis anew: the agents, or the controller, that were about to carry it out are gone."""
    decisions = ladder_state_of(state).ladder.decisions
    return begin(policy, state, decisions[-1])[1:] if decisions else []
