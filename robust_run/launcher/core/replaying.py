"""A replay: groups of a job's nodes run its program at the same time, to find the node it fails on. Pure.

Which groups, and what follows from those that fail, is `health.checks.replay`'s to say. Each group of a pass is an attempt of
its own: with a number that no other has, a store, a world and a folder of logs. So agents need to know nothing but that the
program is told (`ROBUST_REPLAY`), and when it has made enough steps. A node that goes while groups run ends the replay: it is
gone, and the job tries without it. What happens while they run is taken in by `core.replay_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.health.checks import replay as phases
from robust_run.health.ladder.types import Event as LadderEvent
from robust_run.health.ladder.types import Replayed
from robust_run.launcher.core.attempts import begin
from robust_run.launcher.core.ladder.ladder_state import GroupRun, LadderState, ReplayRun, ladder_state_of, remember
from robust_run.launcher.core.ladder.rungs import REPLAY_LEAST_S, REPLAY_MOST_S, decided, next_rung, stop, taken
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.resume import resuming
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, OpenStore, Say, WakeAt
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import LookForCheckpoints

#: A replay makes at least so many steps and twice as many as the attempt that failed, and lasts so long at least and at most.
LEAST_STEPS = 10
LEAST_S, MOST_S = REPLAY_LEAST_S, REPLAY_MOST_S


def advance(
    policy: CorePolicy, state: JobState, event: LadderEvent, now_s: float, at_unix_s: float = 0.0
) -> list[Action]:
    """Take in what came of a rung that was waited for, and take the next."""
    ladder_state, decision = next_rung(policy, state, ladder_state_of(state), event)
    remember(state, ladder_state)
    if decision is None:
        return begin(policy, state, now_s)
    if decision.rung == "stop":
        return stop(state, decision)
    if decision.rung == "replay":
        return [decided(state, decision), *start(policy, state, now_s)]
    return taken(policy, state, decision, now_s, at_unix_s)


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
