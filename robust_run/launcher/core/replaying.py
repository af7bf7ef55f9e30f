"""A replay: groups of a job's nodes run its program at the same time, to find the node it fails on. Pure.

Which groups, and what follows from those that fail, is `health.checks.replay`'s to say. Each group of a pass is an attempt of
its own: with a number that no other has, a store, a world and a folder of logs. So agents need to know nothing but that the
program is told (`ROBUST_REPLAY`), and when it has made enough steps. A node that goes while groups run ends the replay: it is
gone, and the job tries without it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.health.checks import replay as phases
from robust_run.health.ladder.types import Replayed
from robust_run.launcher.core import nodes as membership
from robust_run.launcher.core.attempts import begin, stopped
from robust_run.launcher.core.ladder.ladder_state import GroupRun, LadderState, ReplayRun, ladder_state_of, remember
from robust_run.launcher.core.ladder.rungs import advance
from robust_run.launcher.core.membership import awaits_resume, name_of, ranks_of
from robust_run.launcher.core.resume import resuming
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, EndAttempt, OpenStore, Say, StartAttempt, WakeAt
from robust_run.launcher.model.check_events import ReplayStepped
from robust_run.launcher.model.events import (
    AttemptEnded,
    AttemptStarted,
    ControllerResumed,
    Event,
    NodeEvicted,
    NodeLeft,
    NodeLost,
    NodeReturned,
    RankExited,
    SignalReceived,
    SpawnFailed,
    StoreLost,
    StoreOpened,
    Tick,
)
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import LookForCheckpoints, NoResumePoint, ResumeChosen

SIGTERM = 15
#: A replay makes at least so many steps and twice as many as the attempt that failed, and lasts so long at least and at most.
LEAST_STEPS = 10
LEAST_S, MOST_S = 60.0, 1800.0


def start(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Begin the first pass."""
    nodes: dict[str, str] = {}
    for placement in state.layout:
        member = state.members.get(placement.node)
        if member is not None and member.present and member.info.name not in state.evicted:
            nodes.setdefault(member.info.name, placement.node)
    run = ReplayRun(
        replay=phases.start(nodes, unit=policy.replay_unit),
        nodes=nodes,
        steps=max(LEAST_STEPS, 2 * (state.progress.steps or 0)),
        limit_s=min(max(LEAST_S, 2 * state.progress.lived_s), MOST_S),
    )
    state.phase, state.ending = "replaying", None
    return _next_pass(policy, state, ladder_state_of(state), run, now_s)


def _next_pass(
    policy: CorePolicy, state: JobState, ladder_state: LadderState, run: ReplayRun, now_s: float
) -> list[Action]:
    groups = phases.next_groups(run.replay)
    if not groups:
        return _over(policy, state, ladder_state, run, now_s)
    runs = []
    for group in groups:
        state.attempt += 1
        names = [run.replay.machines[each] for each in (*group.members, *group.helpers)]
        layout = _layout(state, [run.nodes[n] for n in names])
        looks = resuming.folder_of(state, layout)
        runs.append(GroupRun(group=group, attempt=state.attempt, layout=layout, looks=looks))
    state.unended = {placement.node for each in runs for placement in each.layout}
    state.deadline_at_s = now_s + run.limit_s
    remember(state, msgspec.structs.replace(ladder_state, replay=msgspec.structs.replace(run, runs=tuple(runs))))
    opens: list[Action] = [OpenStore(attempt=each.attempt, node=each.layout[0].node) for each in runs]
    questions: list[Action] = [_look(state, each) for each in runs if each.looks]
    sizes = f"{len(runs)} group{'s' if len(runs) > 1 else ''} of nodes ({groups[0].phase})"
    text = f"replay: {sizes} run the program, {run.steps} steps or {run.limit_s:.0f} s each"
    return [Say(text=text), *questions, *opens, WakeAt(state.deadline_at_s)]


def _look(state: JobState, one: GroupRun) -> LookForCheckpoints:
    nodes = tuple(each.node for each in one.layout)
    return resuming.look(state, one.attempt, nodes, len(nodes), one.looks)


def _layout(state: JobState, agents: Iterable[str]) -> tuple[Placement, ...]:
    made: list[Placement] = []
    first_rank = 0
    for group_rank, agent in enumerate(agents):
        nproc = state.members[agent].info.nproc
        made.append(Placement(node=agent, group_rank=group_rank, first_rank=first_rank, nproc=nproc))
        first_rank += nproc
    return tuple(made)


def _over(policy: CorePolicy, state: JobState, ladder_state: LadderState, run: ReplayRun, now_s: float) -> list[Action]:
    state.deadline_at_s = None
    remember(state, msgspec.structs.replace(ladder_state, replay=None))
    return advance(policy, state, Replayed(at_s=now_s, conclusion=phases.conclude(run.replay)), now_s)


def pass_over(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Nothing of the pass can run any more: count it, and go on."""
    ladder_state = ladder_state_of(state)
    run = ladder_state.replay
    if run is None or state.strays:
        return []
    if run.given_up:
        fresh = msgspec.structs.replace(ladder_state.ladder, decisions=(), failure=None, evicted=(), known=())
        remember(state, msgspec.structs.replace(ladder_state, replay=None, ladder=fresh))
        return [Say(text=f"the replay is given up: {run.given_up}"), *begin(policy, state, now_s)]
    failed = {each.group.number for each in run.runs if each.outcome == "failed"}
    after = phases.record(run.replay, [each.group for each in run.runs], failed)
    said = [
        f"{'+'.join(name_of(state, place.node) for place in each.layout)}: {each.why}"
        for each in run.runs
        if each.outcome == "failed"
    ]
    text = f"replay: {len(failed)} of {len(run.runs)} groups failed" + (f" ({'; '.join(said[:4])})" if said else "")
    run = msgspec.structs.replace(run, replay=after, runs=())
    return [Say(text=text), *_next_pass(policy, state, ladder_state, run, now_s)]


# --- while groups run -----------------------------------------------------------------------------------------------


def take(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action] | None:  # noqa: C901, PLR0912 - the table
    """Return what follows from an event of a replay; None where it is an event like any other."""
    run = ladder_state_of(state).replay
    if run is None:
        return None
    match event:
        case StoreOpened(attempt=attempt) if _of(run, attempt) is not None:
            return _opened(state, _of(run, attempt), event)
        case ResumeChosen(attempt=attempt) if awaits_resume(state, attempt):
            return _chosen(state, _of(run, attempt), event)
        case NoResumePoint(attempt=attempt, reason=reason) if awaits_resume(state, attempt):
            return _end(policy, state, _of(run, attempt), "broken", reason)
        case RankExited(attempt=attempt, rank=rank, exit_code=code) if _of(run, attempt) is not None:
            return _exited(policy, state, _of(run, attempt), rank, code)
        case ReplayStepped(attempt=attempt, node=node) if _of(run, attempt) is not None:
            return _stepped(policy, state, _of(run, attempt), node)
        case SpawnFailed(attempt=attempt, message=message) if _of(run, attempt) is not None:
            return _end(policy, state, _of(run, attempt), "failed", message)
        case StoreLost(attempt=attempt, detail=detail) if _of(run, attempt) is not None:
            return _end(policy, state, _of(run, attempt), "failed", detail)
        case AttemptStarted(attempt=attempt) if _of(run, attempt) is not None:
            return []
        case AttemptEnded(attempt=attempt, node=node) if _of(run, attempt) is not None:
            _note_damage(state, _of(run, attempt), event)
            return _node_ended(policy, state, _of(run, attempt), node, now_s)
        case NodeReturned(node=node) if node in state.unended:
            return _repeated(policy, run, node) + membership.returned(policy, state, event, now_s)
        case NodeLost() | NodeLeft() if event.node in state.unended:
            gone = membership.lost if isinstance(event, NodeLost) else membership.left
            ends = _give_up(policy, state, f"{name_of(state, event.node)} is gone")
            return ends + gone(policy, state, event, now_s)  # type: ignore[arg-type]
        case NodeEvicted(name=name) if any(name_of(state, node) == name for node in state.unended):
            return _give_up(policy, state, f"{name} was evicted") + membership.evicted(policy, state, event, now_s)
        case ControllerResumed():
            return _resumed(policy, state, event, now_s)
        case SignalReceived():
            return _stop(policy, state, event)
        case Tick():
            return _time_is_up(policy, state, now_s)
        case _:
            return None


def _of(run: ReplayRun, attempt: int) -> GroupRun | None:
    return next((each for each in run.runs if each.attempt == attempt), None)


def _put(state: JobState, changed: GroupRun) -> None:
    ladder_state = ladder_state_of(state)
    assert ladder_state.replay is not None
    runs = tuple(changed if each.attempt == changed.attempt else each for each in ladder_state.replay.runs)
    remember(
        state, msgspec.structs.replace(ladder_state, replay=msgspec.structs.replace(ladder_state.replay, runs=runs))
    )


def _opened(state: JobState, one: GroupRun | None, event: StoreOpened) -> list[Action]:
    assert one is not None
    if one.port or one.outcome:
        return []
    live = tuple(rank for placement in one.layout for rank in ranks_of(placement))
    one = msgspec.structs.replace(one, address=event.address, port=event.port, live=live)
    _put(state, one)
    return _go(state, one)


def _chosen(state: JobState, one: GroupRun | None, event: ResumeChosen) -> list[Action]:
    assert one is not None
    one = msgspec.structs.replace(one, resume=event.point())
    _put(state, one)
    return _go(state, one)


def _go(state: JobState, one: GroupRun) -> list[Action]:
    """Have the workers of a group started, once their store is open and it is known where they start from."""
    ladder_state = ladder_state_of(state)
    assert ladder_state.replay is not None
    return [_order(state, one, ladder_state.replay.steps)] if one.port and not awaits_resume(state, one.attempt) else []


def _order(state: JobState, one: GroupRun, steps: int, only: str = "") -> StartAttempt:
    code = None
    if state.code.records:
        from robust_run.launcher.core import code_ledger as ledger

        code = ledger.use(state.code)
    last = one.layout[-1]
    return StartAttempt(
        attempt=one.attempt,
        address=one.address,
        port=one.port,
        placements=tuple(each for each in one.layout if only in ("", each.node)),
        world_size=last.first_rank + last.nproc,
        nodes=len(one.layout),
        code=code,
        resume=one.resume,
        replay_steps=steps,
    )


def _exited(policy: CorePolicy, state: JobState, one: GroupRun | None, rank: int, code: int) -> list[Action]:
    assert one is not None
    if one.outcome:
        return []
    if code != 0:
        return _end(policy, state, one, "failed", f"rank {rank} ended with {code}")
    one = msgspec.structs.replace(one, live=tuple(each for each in one.live if each != rank))
    _put(state, one)
    return [] if one.live else _end(policy, state, one, "passed", "it ended well")


def _stepped(policy: CorePolicy, state: JobState, one: GroupRun | None, node: str) -> list[Action]:
    assert one is not None
    if one.outcome or node in one.stepped:
        return []
    one = msgspec.structs.replace(one, stepped=(*one.stepped, node))
    _put(state, one)
    return _end(policy, state, one, "passed", "it made its steps") if len(one.stepped) == len(one.layout) else []


def _end(policy: CorePolicy, state: JobState, one: GroupRun | None, outcome: str, why: str) -> list[Action]:
    """Have the nodes of a group end it; what is known of it is settled."""
    assert one is not None
    if one.outcome:
        return []
    one = msgspec.structs.replace(one, outcome=outcome, why=why)
    _put(state, one)
    return [_end_order(policy, one, tuple(each.node for each in one.layout if each.node in state.unended))]


def _end_order(policy: CorePolicy, one: GroupRun, only: tuple[str, ...]) -> EndAttempt:
    return EndAttempt(attempt=one.attempt, signal=SIGTERM, grace_s=policy.restart_grace_s, only=only)


def _note_damage(state: JobState, one: GroupRun | None, event: AttemptEnded) -> None:
    """A group that could not read what it was to start from says nothing of its nodes."""
    if event.damage is None or one is None or event.node not in state.unended:
        return
    resuming.damaged(state, event)
    _put(state, msgspec.structs.replace(one, outcome="broken", why=event.damage.reason))


def _node_ended(policy: CorePolicy, state: JobState, one: GroupRun | None, node: str, now_s: float) -> list[Action]:
    assert one is not None
    if node not in state.unended or node not in [each.node for each in one.layout]:
        return []
    state.unended.discard(node)
    ends = _end(policy, state, one, "broken", f"{name_of(state, node)} ended it") if not one.outcome else []
    return ends + _if_quiet(policy, state, now_s)


def _if_quiet(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    if not state.is_quiet:
        return []
    return stopped(state) if state.stop_signal is not None else pass_over(policy, state, now_s)


def _time_is_up(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Groups that have not failed by now have lived for long enough."""
    if state.deadline_at_s is None or now_s < state.deadline_at_s:
        return []
    state.deadline_at_s = None
    run = ladder_state_of(state).replay
    assert run is not None
    ends: list[Action] = []
    for each in run.runs:
        has_run = each.port and not awaits_resume(state, each.attempt)
        ends += _end(policy, state, each, "passed" if has_run else "broken", "its time is up")
    return ends


def _give_up(policy: CorePolicy, state: JobState, why: str) -> list[Action]:
    ladder_state = ladder_state_of(state)
    assert ladder_state.replay is not None
    if not ladder_state.replay.given_up:
        remember(
            state,
            msgspec.structs.replace(ladder_state, replay=msgspec.structs.replace(ladder_state.replay, given_up=why)),
        )
    ends: list[Action] = []
    for each in ladder_state.replay.runs:
        ends += _end(policy, state, each, "broken", why)
    return ends


def _repeated(policy: CorePolicy, run: ReplayRun, node: str) -> list[Action]:
    """Have a node that was away end what it may run: it missed something, and so did its group."""
    return [_end_order(policy, each, (node,)) for each in run.runs if any(place.node == node for place in each.layout)]


def _resumed(policy: CorePolicy, state: JobState, event: ControllerResumed, now_s: float) -> list[Action]:
    """A replay does not outlive its controller: nodes end it when they return, or have by themselves."""
    state.term = max(state.term, event.term)
    state.hold_until_s = now_s + event.hold_s if event.hold_s else None
    state.deadline_at_s = None
    return _give_up(policy, state, "the controller was restarted") + _if_quiet(policy, state, now_s)


def _stop(policy: CorePolicy, state: JobState, event: SignalReceived) -> list[Action]:
    if state.stop_signal is None:
        state.stop_signal, state.stopped_by = event.signal, event.by
    run = ladder_state_of(state).replay
    assert run is not None
    ends = _give_up(policy, state, "the job is being stopped")
    if event.again:
        return [EndAttempt(attempt=each.attempt, only=tuple(p.node for p in each.layout)) for each in run.runs]
    return ends
