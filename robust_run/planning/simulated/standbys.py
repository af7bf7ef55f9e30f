"""Standbys of a simulated job: checked while the job trains (`--admission-checks`), those among them that were set aside, too."""

from __future__ import annotations

from robust_run.launcher.model.check_events import StandbyChecked
from robust_run.planning.simulated.hosts import Host
from robust_run.planning.simulated.job import SimulatedJob


def set_aside(world: SimulatedJob, host: Host) -> None:
    """A standby took the place of this node, and people are told. It is checked as a standby is."""
    fault = host.fault
    look_at(world, host)
    if fault is not None:
        person_s = world.plan.times.person.draw(world.rng("aside", host.index, host.boots))
        world.after(person_s, lambda: world.strikes.people_evict(host, fault))


def look_at(world: SimulatedJob, host: Host) -> None:
    """Check a node, if no attempt needs it when that is over."""
    agent = host.agent
    if world.plan.uses.checks:
        took_s = world.plan.times.checks.draw(world.rng("standby", agent))
        world.after(took_s, lambda: _checked(world, host, agent))


def _checked(world: SimulatedJob, host: Host, agent: str) -> None:
    state, fault = world.state, host.fault
    is_idle = state.is_started and agent in world.by_agent and agent not in state.places
    if host.agent != agent or not is_idle or host.name in state.evicted:
        return
    found = fault is not None and world.rng("admits", agent).random() < fault.kind.found
    said = fault.name if fault is not None and found else "all checks passed"
    rule = "wrong_results" if found else "all_passed"
    world.feed(StandbyChecked(node=agent, name=host.name, admitted=not found, rule=rule, sentence=said))
