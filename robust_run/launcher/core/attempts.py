"""Lifecycle of attempts: gathering nodes, starting, ending. What follows from an end is `core.conclusion`'s."""

from __future__ import annotations

import msgspec

from robust_run.launcher.core.membership import Gathering, fewest_of, gather
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, EndAttempt, Finish, OpenStore, Say, StartAttempt, WakeAt
from robust_run.launcher.model.code_events import CodeUse
from robust_run.launcher.model.job import Placement, Progress
from robust_run.signals import signal_name

SIGTERM = 15

#: Checkpoints that workers are told to leave alone, at most: the newest ones.
MOST_LEFT = 64
#: Nodes that are started together arrive within this time: until then no line says that they are awaited.
ARRIVING_S = 2.0


def begin(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Gather nodes from now on."""
    state.phase = "gathering"
    state.gathering_since_s, state.enough_since_s, state.deadline_at_s = now_s, None, None
    return try_to_gather(policy, state, now_s)


def try_to_gather(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Start the next attempt if the nodes for it are there; else wait, or give up when that has taken too long."""
    if state.strays or state.told:
        return []  # what follows when the last of them has ended, or left
    if is_held(state, now_s):
        return _wake_at(state, state.hold_until_s)
    if is_paused(state, now_s):
        return _wake_at(state, state.pause_until_s)
    state.pause_until_s = None
    if state.usable < fewest_of(policy, state):
        if state.enough_since_s is not None:
            state.gathering_since_s = now_s  # there were enough: the wait for them begins anew
        state.enough_since_s = None
    elif state.enough_since_s is None:
        state.enough_since_s = now_s
    found = gather(policy, state, now_s)
    if found.decision == "start":
        return _open(state, found.layout)
    if found.decision == "give_up":
        return finish(state, Finish(exit_code=found.exit_code, outcome="failed", reason=found.reason))
    return _wait(policy, state, found, now_s)


def is_held(state: JobState, now_s: float) -> bool:
    """Whether agents that are not on record may still run something."""
    return state.hold_until_s is not None and now_s < state.hold_until_s


def is_paused(state: JobState, now_s: float) -> bool:
    """Whether what failed the last attempt is given time to pass."""
    return state.pause_until_s is not None and now_s < state.pause_until_s


def _wake_at(state: JobState, at_s: float | None) -> list[Action]:
    if at_s is None or state.deadline_at_s == at_s:
        return []
    state.deadline_at_s = at_s
    return [WakeAt(at_s)]


def _wait(policy: CorePolicy, state: JobState, found: Gathering, now_s: float) -> list[Action]:
    """Look again when the wait is over, and say for what; not while nodes that were started together are just arriving."""
    until_s = found.until_s if found.until_s is not None else now_s
    is_quiet = are_arriving(policy, state, now_s)
    if is_quiet:
        until_s = min(until_s, _quiet_until_s(state))
    if state.deadline_at_s == until_s:
        return []
    state.deadline_at_s = until_s
    if is_quiet or not policy.many:
        return [WakeAt(until_s)]
    return [Say(text=found.reason), *_share_blocks(state), WakeAt(until_s)]


def are_arriving(policy: CorePolicy, state: JobState, now_s: float) -> bool:
    """Whether nodes that were started together may just be arriving, so that nothing is said of who is not there."""
    is_first = state.term == 1 and not state.layout and state.enough_since_s is None
    return policy.many and is_first and state.usable == len(state.members) and now_s < _quiet_until_s(state)


def _quiet_until_s(state: JobState) -> float:
    return (state.gathering_since_s or 0.0) + ARRIVING_S


def _share_blocks(state: JobState) -> list[Action]:
    """Nodes that wait for others share what they fetch meanwhile."""
    if not any(member.info.blocks for member in state.members.values()):
        return []
    from robust_run.launcher.core import block_sharing

    return [*block_sharing.waiting(state)]


def _open(state: JobState, layout: tuple[Placement, ...]) -> list[Action]:
    _remember_start(state)
    state.phase = "opening"
    state.attempt += 1
    state.layout = layout
    state.places = {placement.node: index for index, placement in enumerate(layout)}
    state.unended = set(state.places)
    state.address, state.port = "", 0
    state.started, state.live, state.early_exits = set(), set(), []
    state.crashed_at_exit = set()
    state.evidence, state.causes = [], []
    state.progress, state.trouble, state.all_well = Progress(), "", False
    state.is_inquiring, state.suspected_at_s, state.traced = False, None, None
    state.is_traced_end, state.evicted_for, state.reported = False, (), []
    state.suspended_for = state.suspended_sign = ""
    state.waits, state.waits_over, state.stands_still = {}, {}, False
    forget_waits(state)
    state.detected_at_s = state.deadline_at_s = None
    state.gathering_since_s = state.enough_since_s = None
    state.ending = state.code_fault = None
    if state.code.records:
        from robust_run.launcher.core import code_ledger as ledger

        state.code = ledger.begun(state.code, state.attempt)
    return [*_ask_where_to_start(state), OpenStore(attempt=state.attempt, node=layout[0].node)]


def _remember_start(state: JobState) -> None:
    if state.looks_in or state.has_memory:
        from robust_run.launcher.core.resume import resuming

        resuming.remember(state)


def _ask_where_to_start(state: JobState) -> list[Action]:
    """Have the nodes say which checkpoints they see, where any was given a folder of them or holds some in memory: beside the
    opening of the store. Before the first attempt nothing is in memory, and no worker waits for that to be said.
    """
    state.resume, state.found_damaged, state.no_point = None, "", ""
    state.elsewhere, state.memory_peers, state.memory_keeps, state.memory_told = (), {}, {}, {}
    state.memory_needs, state.memory_strides = {}, (1, 1)
    state.looks_in = ""
    infos = [state.members[each.node].info for each in state.layout]
    state.has_memory = any(info.has_memory for info in infos)
    state.asks_memory = state.has_memory and state.attempt > 0
    if state.has_memory and state.code.records:
        state.versions_run[state.attempt] = state.code.running
    if not state.asks_memory and not any(info.ckpt_dir for info in infos):
        return []
    from robust_run.launcher.core.resume import resuming

    state.looks_in = resuming.folder_of(state, state.layout)
    nodes = tuple(each.node for each in state.layout)
    return [resuming.look(state, state.attempt, nodes, len(nodes), state.looks_in)]


def forget_waits(state: JobState) -> None:
    """No wait of an attempt is known, and no rank of it has been left behind."""
    state.act_at_s = state.last_left_at_s = state.leftovers_at_s = None
    state.leftovers_pause_s, state.looks_at_leftovers = 0.0, False


def start(state: JobState) -> list[Action]:
    """Have all workers started, and nodes send copies of what they keep in memory to others, where keepers take them."""
    order = start_order(state)
    actions: list[Action] = [order]
    if order.peers and len(state.members) > len(state.layout):
        from robust_run.launcher.core import block_sharing

        actions += block_sharing.started(state)
    if state.memory_at:
        from robust_run.launcher.core.resume import peers

        actions += peers.orders(state)
    return actions


def start_order(state: JobState, only: str = "") -> StartAttempt:
    """Return the order to start the attempt's workers. `only`: a node; empty: all of them."""
    placements = state.layout if not only else (state.layout[state.places[only]],)
    elsewhere = state.elsewhere
    if elsewhere and only:
        from robust_run.launcher.core.resume.parts import of_placement

        elsewhere = of_placement(elsewhere, placements[0])
    fetching = [each for each in state.layout if state.members[each.node].info.fetches]
    return StartAttempt(
        attempt=state.attempt,
        address=state.address,
        port=state.port,
        placements=placements,
        world_size=state.world_size,
        nodes=len(state.layout),
        peers=tuple(filter(None, (state.members[each.node].info.blocks for each in state.layout))),
        fetchers=tuple(state.members[each.node].info.fetches for each in fetching),
        fetcher_ranks=tuple((each.first_rank, each.nproc) for each in fetching),
        code=_code(state),
        resume=state.resume,
        elsewhere=elsewhere,
        leave=(*state.passed_over, *state.started_from)[-MOST_LEFT:],
    )


def _code(state: JobState) -> CodeUse | None:
    if not state.code.records:
        return None
    from robust_run.launcher.core import ledger_queries as queries

    return queries.use(state.code)


def end_attempt(state: JobState, order: EndAttempt) -> list[Action]:
    """Have every node of the attempt end it; a second order only if it is more urgent."""
    if state.phase != "stopping":
        state.phase = "ending"
    state.deadline_at_s = None
    state.ending = order
    return [order] if state.unended else []


def failure_ending(policy: CorePolicy, state: JobState) -> EndAttempt:
    """One failed, so none can go on: the survivors get SIGTERM and the grace; what they leave behind is not waited for."""
    return EndAttempt(attempt=state.attempt, signal=SIGTERM, grace_s=policy.restart_grace_s)


def stopped(state: JobState) -> list[Action]:
    """End the job because it was told to."""
    number = state.stop_signal or 0
    by = f"stopped by {state.stopped_by}" if state.stopped_by else f"stopped by {signal_name(number)}"
    return finish(state, Finish(exit_code=128 + number, outcome="stopped", reason=by))


def finish(state: JobState, end: Finish) -> list[Action]:
    """The job is over."""
    if state.memory_told:
        from robust_run.launcher.core.resume import peers

        end = msgspec.structs.replace(end, stand_ins=peers.stand_ins(state))
    state.phase, state.finish = "over", end
    return [end]
