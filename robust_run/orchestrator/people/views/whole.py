"""What people are shown of a job of several roles. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from robust_run.orchestrator.model.command import run_name
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import UP, JobState
from robust_run.orchestrator.model.words import StartMember
from robust_run.orchestrator.rules.update_questions import code_words
from robust_run.orchestrator.rules.waits import lines_of as wait_lines
from robust_run.roles.queue_words import Counts
from robust_run.roles.view_words import MemberView, RolesView, RoleView, WaitChain


def view_of(
    spec: RolesSpec,
    state: JobState,
    *,
    is_led: bool,
    pids: Mapping[str, int] | None = None,
    queues: Mapping[str, Counts] | None = None,
    idle: Mapping[str, float] | None = None,
    chains: tuple[WaitChain, ...] = (),
    node: str = "",
) -> RolesView:
    """Return how a job is. `pids`: of launchers that run, by run directory. `idle`: shares of time, by member. `chains`: see
    `waits.chains`. `node`: which one leads.
    """
    return RolesView(
        name=spec.name,
        phase=state.phase,
        is_led=is_led,
        code=state.code,
        sentence=state.sentence,
        roles=tuple(_role(role, state, pids or {}, idle or {}) for role in spec.roles),
        queues=dict(queues or {}),
        waits=tuple(wait_lines(chains)),
        chains=chains,
        queue_items=spec.queue_items,
        queue_bytes=spec.queue_bytes,
        node=node,
    )


def _role(role: RoleSpec, state: JobState, pids: Mapping[str, int], idle: Mapping[str, float]) -> RoleView:
    members = tuple(_member(state, member.name, pids, idle) for member in state.of(role.name))
    shares = [member.idle for member in members if member.idle is not None]
    return RoleView(
        name=role.name,
        restart=role.restart,
        wanted=state.wanted.get(role.name, 0),
        fewest=role.fewest,
        most=role.most,
        members=members,
        idle=sum(shares) / len(shares) if shares else None,
        code=code_words(state, role.name),
        acts=state.needs[role.name].acts if role.name in state.needs else (),
    )


def _member(state: JobState, name: MemberName, pids: Mapping[str, int], idle: Mapping[str, float]) -> MemberView:
    member = state.members[name]
    run = run_name(StartMember(member=name, serial=member.serial, nodes=())) if member.serial else ""
    return MemberView(
        name=str(name),
        state=member.standing,
        generation=member.generation,
        ready=member.is_ready,
        pid=pids.get(run, 0) if member.standing in UP else 0,
        starts=member.serial,
        restarts=max(member.generation - 1, 0),
        nodes=member.nodes,
        run=f"members/{run}" if run else "",
        sentence=member.sentence,
        idle=idle.get(str(name)) if member.standing in UP else None,
    )


def lacks_room(view: RolesView, role: str) -> str:
    """Return which members of a role wait for room, as a sentence; empty: none does."""
    members = next((each.members for each in view.roles if each.name == role), ())
    waiting = [each for each in members if each.state == "waits" and each.sentence]
    if not waiting:
        return ""
    return f"{len(waiting)} of its members find no room yet, and begin when there is some: {waiting[0].sentence}"


def headline(view: RolesView) -> str:
    """Return how a job is in a line."""
    if view.phase == "over":
        how = "is done" if view.code == 0 else f"ended with exit code {view.code}"
    else:
        how = {"new": "begins", "going": "runs", "restarting": "begins again", "ending": "ends"}[view.phase]
        how += "" if view.is_led else ", says its journal; nobody answers, so that its processes may be gone"
    return f"{view.name} {how}" + (f": {view.sentence}" if view.sentence else "")


def lines_of(view: RolesView) -> Iterator[str]:
    """Yield a status for people, the job first."""
    yield headline(view)
    for role in view.roles:
        ready = sum(member.ready for member in role.members)
        limits = f" of {role.fewest} to {role.most}" if role.fewest != role.most else ""
        yield f"{role.name}: {role.wanted} wanted{limits}, {ready} ready, restart {role.restart}" + _idle(role.idle)
        if role.code:
            yield f"  code {role.code}"
        yield from (f"  {act}" for act in role.acts)
        for member in role.members:
            yield "  " + ", ".join(_about(member))
    for name, counts in sorted(view.queues.items()):
        yield (
            f"queue {name}: {counts.waiting} waiting, {counts.leased} leased, {counts.kept} kept,"
            f" {counts.put} put, {counts.done} done, {counts.stale} too old, {counts.bytes} bytes"
        )
    yield from view.waits


def _idle(share: float | None) -> str:
    return "" if share is None else f", idle {share:.0%} (waits at queues)"


def _about(member: MemberView) -> Iterator[str]:
    yield f"{member.name} {member.state}" + (" ready" if member.ready else "")
    if member.generation:
        yield f"generation {member.generation}"
    if member.idle is not None:
        yield f"idle {member.idle:.0%}"
    if member.pid:
        yield f"pid {member.pid}"
    if member.run:
        yield member.run
    if member.sentence:
        yield member.sentence
