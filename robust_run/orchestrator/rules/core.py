"""Decisions of a job of several roles: (spec, state, event, now) to the next state and what is to be done. Pure, deterministic.

Each member's own launcher heals it: restarts, hangs, evictions. Here it is decided what that means to the others:

    waits ──depends_on is ready, there is room──► starting ──► running ──ended well──► done
      ▲                                                          │ its launcher failed
      │           alone: after a pause, some times          ◄────┤
      │           job: all members are ended, and begin again ◄──┤
      └──────────                                                └─► together: the job fails

A role whose members are all done is done; those that were given up do not count, as long as `fewest` others are left.

A launcher that fails has already started its workers again as often as it may, and names the reason; so a role of one world is
not started anew, unless the launcher itself was killed. What healthy things look the same: a member that is idle, that waits for
another role, or that takes long to be ready is left alone for ever; an end is acted on, and a worker that is stopped while others
wait for it (`stopped`). What comes back: a node may be offered again; what an earlier launcher of a member still says carries an
old serial, and is void.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from robust_run.orchestrator.model.demand_words import Measured
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import UP, JobState, Member, Node
from robust_run.orchestrator.model.update_words import CodeFate, CodeLost, CodeSeen, TakeBackAsked, UpdateAsked
from robust_run.orchestrator.model.words import (
    Action,
    Asked,
    Begun,
    Changed,
    Event,
    Finish,
    JobStarted,
    NodeGone,
    NodeLeads,
    NodeOffered,
    RankEnded,
    RankGone,
    RankHeldUp,
    RankReady,
    RankStopped,
    RestartMember,
    SayLine,
    Tick,
    WakeAt,
    WorldEnded,
    WorldFailed,
    WorldRuns,
    code_text,
    exit_code,
)
from robust_run.orchestrator.rules import update_questions as questions
from robust_run.orchestrator.rules import update_rules as updates
from robust_run.orchestrator.rules.again import another_clock, begin_again
from robust_run.orchestrator.rules.elastic import demand, scaling
from robust_run.orchestrator.rules.elastic.endings import SIGTERM, end_job, stop_all, stop_member
from robust_run.orchestrator.rules.placement import vacate
from robust_run.orchestrator.rules.shortage import ends_job
from robust_run.orchestrator.rules.starting import start_role

#: A member whose launcher ran for so long has not failed in a row.
STEADY_S = 600.0
#: A launcher that was asked to start its workers again, and did not, is asked once more.
ASK_AGAIN_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
SIGKILL = 9


def step(spec: RolesSpec, state: JobState, event: Event, now_s: float) -> tuple[Action, ...]:
    """Change the state by one event; return what is to be done now. Late or repeated events change nothing."""
    if isinstance(event, JobStarted):
        another_clock(state, now_s)
        begin_again(state, event.start)
        state.last_s = now_s
        return ()
    if state.phase == "over":
        return ()
    if isinstance(event, NodeLeads):
        another_clock(state, now_s)
    state.last_s = now_s
    actions = [*_take(spec, state, event, now_s), *_settle(spec, state, now_s)]
    changed = dict.fromkeys(action for action in actions if isinstance(action, Changed))
    return (*(action for action in actions if not isinstance(action, Changed)), *changed)


def replay(spec: RolesSpec, events: Iterable[tuple[Event, float]]) -> JobState:
    """Return the state that these events lead to: what an orchestrator that is started again continues from."""
    state = JobState()
    for event, now_s in events:
        step(spec, state, event, now_s)
    return state


def _take(spec: RolesSpec, state: JobState, event: Event, now_s: float) -> Iterator[Action]:
    match event:
        case Begun() if state.phase == "new":
            state.phase, state.patience_s = "going", event.patience_s
            for role in spec.roles:
                state.wanted.setdefault(role.name, role.members)
                for index in range(max(role.most, role.members)):
                    name = MemberName(role.name, index)
                    one = state.members.setdefault(name, Member(name=name))
                    one.standing = "done" if one.is_finished else state.idle(name)
        case NodeOffered():
            node = Node(event.slots, event.devices, guard=event.guard, cpus=event.cpus, labels=event.labels)
            state.nodes.setdefault(event.node, node)
        case NodeGone():
            yield from _node_gone(spec, state, event, now_s)
        case Asked() | Measured():
            yield from _take_wish(spec, state, event, now_s)
        case UpdateAsked() | TakeBackAsked() | CodeSeen() | CodeFate() | CodeLost():
            yield from updates.take(state, event, now_s)
        case WorldRuns() | WorldFailed() | WorldEnded() | RankReady() | RankGone() | RankEnded() | RankHeldUp():
            member = state.members.get(event.member)
            if member is not None and member.serial == event.serial and member.standing in UP:
                yield from _take_of_member(spec, state, member, event, now_s)
        case Begun() | NodeLeads() | Tick() | RankStopped():
            pass


def _take_wish(spec: RolesSpec, state: JobState, event: Asked | Measured, now_s: float) -> Iterator[Action]:
    match event:
        case Measured():
            yield from demand.take(spec, state, event, now_s)
        case Asked(what="stop"):
            yield from end_job(state, 128 + event.signal, f"{event.by or 'somebody'} asked for it", event.signal)
        case Asked() if event.role in spec.names and state.phase in ("going", "restarting"):
            yield from scaling.asked(spec.role(event.role), state, event, now_s, spec.scale_after_s)
        case Asked():
            pass


def _take_of_member(
    spec: RolesSpec,
    state: JobState,
    member: Member,
    event: WorldRuns | WorldFailed | WorldEnded | RankReady | RankGone | RankEnded | RankHeldUp,
    now_s: float,
) -> Iterator[Action]:
    role = spec.role(member.name.role)
    match event:
        case WorldRuns():
            if member.standing == "starting" or event.attempt > member.attempt:
                yield from _runs(role, member, event.attempt, now_s)
        case RankReady():
            if event.attempt > member.attempt or member.standing == "starting":
                yield from _runs(role, member, event.attempt, now_s)  # it was faster than its launcher's word
            if event.attempt == member.attempt:
                member.ready[event.rank] = event.address
                enough = role.ready == "started" or len(member.ready) >= role.nproc * role.nodes
                was_ready, member.is_ready = member.is_ready, enough and member.standing == "running"
                member.up_s = now_s if member.is_ready and not was_ready else member.up_s
                yield Changed(member=member.name)
        case RankGone() | RankEnded() if event.attempt == member.attempt and event.rank in member.ready:
            del member.ready[event.rank]
            member.is_ready = member.is_ready and role.ready == "started"
            yield Changed(member=member.name)
        case WorldFailed() if event.attempt >= member.attempt:
            member.ready, member.is_ready, member.sentence = {}, False, event.sentence
            yield Changed(member=member.name)
        case RankHeldUp() if event.attempt == member.attempt and state.phase == "going":
            yield from _held_up(role, member, event, now_s)
        case WorldEnded():
            yield from _ended(spec, state, member, event, now_s)


def _held_up(role: RoleSpec, member: Member, event: RankHeldUp, now_s: float) -> Iterator[Action]:
    """Its workers start again. In a world of several ranks its launcher sees what waits for whom, and does so."""
    is_asked = member.asked_s is not None and now_s - member.asked_s < ASK_AGAIN_S
    if member.standing != "running" or role.nproc * role.nodes != 1 or is_asked:
        return
    member.asked_s = now_s
    why = f"it has been stopped (SIGSTOP) for {event.for_s:.0f} s, alone of all, and others wait for it"
    yield SayLine(text=f"{member.name}: {why}; its worker is started again")
    yield RestartMember(member=member.name, serial=member.serial, reason=why)


def _runs(role: RoleSpec, member: Member, attempt: int, now_s: float) -> Iterator[Action]:
    """A new incarnation of a member runs."""
    if member.standing == "starting":
        member.standing = "running"
    member.attempt, member.asked_s, member.up_s = attempt, None, now_s
    member.generation += 1
    member.ready = {}
    member.is_ready = role.ready == "started" and member.standing == "running"
    if member.runs_since_s is None:
        member.runs_since_s = now_s
    yield Changed(member=member.name)


def _ended(
    spec: RolesSpec, state: JobState, member: Member, event: WorldEnded, now_s: float, *, counts: bool = True
) -> Iterator[Action]:
    """A launcher has ended. `counts`: it failed, if not well; else its node was taken away."""
    role = spec.role(member.name.role)
    was_stopping = member.standing == "stopping"
    ran_s = now_s - member.runs_since_s if member.runs_since_s is not None else 0.0
    vacate(member, state.nodes)
    member.ready, member.is_ready, member.runs_since_s = {}, False, None
    member.code, member.sentence = event.code, event.sentence
    yield Changed(member=member.name)
    if was_stopping or state.phase != "going":
        member.standing = "done" if event.code == 0 and state.phase == "ending" else "held"
        return
    if event.code == 0:
        member.standing, member.is_finished = "done", True
        return
    if counts:
        member.failed = 1 if ran_s >= STEADY_S else member.failed + 1
    how = f" ended with {code_text(event.code)}" if counts else ""
    why = f"{member.name}{how}" + (f": {event.sentence}" if event.sentence else "")
    if event.code > 0:  # it was not killed, nor its node lost
        yield from updates.failed(state, member, why)
    if role.restart == "job":
        state.job_restarts = 0 if ran_s >= STEADY_S else state.job_restarts
        if not counts or state.job_restarts < role.max_restarts:
            member.standing = "held"
            state.job_restarts += counts
            times = f" ({state.job_restarts} of {role.max_restarts})" if counts else ""
            yield from _begin_again(state, f"{why}; all roles begin again{times}")
            return
    if role.restart == "alone" or (role.restart == "together" and event.code < 0) or not counts:
        yield from _pause(state, role, member, why, now_s, counts)
        return
    member.standing = "given_up"
    yield from end_job(state, exit_code(event.code), why, SIGTERM)


def _begin_again(state: JobState, sentence: str) -> Iterator[Action]:
    """End all members; they are started once none runs."""
    state.phase = "restarting"
    yield SayLine(text=sentence)
    yield from stop_all(state, SIGTERM)


def _pause(state: JobState, role: RoleSpec, member: Member, why: str, now_s: float, counts: bool) -> Iterator[Action]:
    """Start a member's launcher anew in a moment, or give it up."""
    if not counts or member.failed <= role.max_restarts:
        member.standing = "pausing"
        member.until_s = now_s + min(FIRST_PAUSE_S * 2 ** max(member.failed - 1, 0), LONGEST_PAUSE_S)
        times = f" ({member.failed} of {role.max_restarts})" if counts else ""
        yield SayLine(text=f"{why}; it is started anew{times}")
        yield WakeAt(at_s=member.until_s)
        return
    member.standing = "given_up"
    left = sum(each.standing != "given_up" for each in state.of(role.name)[: state.wanted[role.name]])
    if left < role.fewest:
        why += f"; {left} of the {role.fewest} members that {role.name} needs are left"
        yield from end_job(state, exit_code(member.code or 1), why, SIGTERM)
    else:
        yield SayLine(text=f"{why}; it is given up after {member.failed} in a row, {left} members of {role.name} go on")


def _node_gone(spec: RolesSpec, state: JobState, event: NodeGone, now_s: float) -> Iterator[Action]:
    """Members that ran on it have ended; what they ran on elsewhere is told to end before they are started again."""
    if state.nodes.pop(event.node, None) is None:
        return
    for member in list(state.members.values()):
        if member.standing in UP and event.node in member.nodes:
            sentence = f"its node {event.node} is gone" + (f" ({event.why})" if event.why else "")
            member.nodes = tuple(name for name in member.nodes if name != event.node)
            if member.nodes:
                member.sentence = sentence
                yield from stop_member(member, SIGTERM)  # it begins again when the rest of it has ended
                continue
            ended = WorldEnded(member=member.name, serial=member.serial, code=-SIGKILL, sentence=sentence)
            yield from _ended(spec, state, member, ended, now_s, counts=not event.was_told)


def _settle(spec: RolesSpec, state: JobState, now_s: float) -> Iterator[Action]:
    """Do what can be done now: start members that may be, end what is over."""
    if state.phase == "going":
        over = [role for role in spec.roles if role.ends == "job" and state.is_done(role.name)]
        if over:
            yield from end_job(state, 0, f"{over[0].name} is done", SIGTERM)
        elif all(state.is_done(role.name) for role in spec.roles):
            yield from end_job(state, 0, "", SIGTERM)
    for why in [questions.begins_again(role, state) for role in spec.roles]:
        yield from _begin_again(state, f"{why}: all roles begin again") if why else ()
    if state.phase == "restarting" and not state.any_up():
        state.phase = "going"
        for member in state.members.values():
            if member.standing != "given_up":
                member.standing, member.code, member.failed = state.idle(member.name), None, 0
                member.is_finished = False
                yield Changed(member=member.name)
    if state.phase == "going":
        for role in spec.roles:
            yield from start_role(spec, state, role, now_s)
            yield from updates.spread(role, state, now_s)
        if why := ends_job(spec, state, now_s):
            state.is_short = True
            yield from end_job(state, 1, why, SIGTERM)
    if state.phase == "ending" and not state.any_up():
        state.phase = "over"
        yield Finish(code=state.code, sentence=state.sentence, is_short=state.is_short)
