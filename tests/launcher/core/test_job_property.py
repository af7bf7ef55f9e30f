"""Whatever happens to a job of several nodes, it keeps its promises and always gets on again.

Hypothesis plans the faults; `simulated_job` plays them against the real core in virtual time and checks after every event:
never workers of two attempts at one time, every rank exactly once, no evicted node, survivors keep their ranks, attempt
numbers without gaps, a resumed controller knows what the dead one knew, no end without a reason. Where the journal lost its
last records, numbers may have gaps, and yet no node is given one that it knows.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_checkpoints import CheckpointWorld
from simulated_code import CodeWorld, version
from simulated_job import BUG, PEER, World, plain

from robust_run.launcher.core.state import CorePolicy
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.code_events import CodeCaptured
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted, RestartAsked

EXAMPLES = int(os.environ.get("JOB_PROPERTY_EXAMPLES", "800"))

Kind = Literal[
    "power_loss", "agent_dies", "agent_leaves", "host_joins", "cut", "connection_breaks", "evict", "readmit",
    "rank_fails", "rank_lost_peer", "rank_ends", "all_end_well", "spawn_fails", "store_dies",
    "controller_dies", "controller_dies_between", "journal_cut", "restart", "slow", "agent_is_told", "stop",
]  # fmt: skip

#: A few lengths around the leases and timeouts find more than any.
MOMENTS = st.sampled_from((0.0, 0.001, 0.05, 0.3, 1.0, 2.5, 2.9, 3.0, 3.2, 3.5, 3.6, 4.5, 8.0, 20.0))

SEEDS = st.integers(0, 2**32)


class Fault(msgspec.Struct, frozen=True):
    """Something that happens to a job."""

    kind: Kind
    after_s: float
    """Since the fault before."""
    which: int = 0
    lasts_s: float = 0.0


NODE_FAULTS = get_args(Kind)[:8]
FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(get_args(Kind)[:-1]) | st.sampled_from((*NODE_FAULTS, "controller_dies", "rank_fails")),
    after_s=MOMENTS,
    which=st.integers(0, 5),
    lasts_s=MOMENTS,
)
#: Without "journal_cut": what the journal has lost may be why ranks lost their connections, and then nobody excuses them.
HARMLESS = st.builds(
    Fault,
    kind=st.sampled_from(
        (*NODE_FAULTS, "controller_dies", "controller_dies_between", "restart", "slow", "all_end_well")
    ),
    after_s=MOMENTS,
    which=st.integers(0, 5),
    lasts_s=MOMENTS,
)


@st.composite
def policies(draw: st.DrawFn, max_restarts: int | None = None) -> CorePolicy:
    fewest = draw(st.integers(1, 3))
    return CorePolicy(
        fewest=fewest,
        most=fewest + draw(st.integers(0, 2)),
        max_restarts=draw(st.sampled_from((0, 2, 1000))) if max_restarts is None else max_restarts,
        progress_after_s=600,
        restart_grace_s=draw(st.sampled_from((0.0, 3.0))),
        shutdown_timeout_s=5.0,
        join_timeout_s=draw(st.sampled_from((15.0, 600.0))),
        last_call_s=draw(st.sampled_from((0.0, 3.0))),
        wait_for_nodes_s=draw(st.sampled_from((None, 0.0, 5.0))),
        many=True,
    )


def inflict(world: World, fault: Fault) -> None:  # noqa: C901 - the table of faults
    """Let one fault happen."""
    living = world.living()
    agent = living[fault.which % len(living)] if living else None
    match fault.kind:
        case "power_loss" | "agent_dies" if agent is not None:
            world.peers_notice(agent.started)
            agent.power_off(says_so=fault.kind == "agent_dies")
            host = agent.host
            world.after(fault.lasts_s, lambda: world.boot(host))
        case "agent_leaves" if agent is not None:
            agent.leave()
        case "agent_is_told" if agent is not None:
            agent.is_told()
        case "host_joins" if len(living) < 8:
            world.boot(f"host-{len(world.agents)}")
        case "cut" if agent is not None:
            host = agent.host
            world.cut |= {(host, up) for up in (True, False) if fault.which % 3 != up + 1}
            world.after(fault.lasts_s, lambda: world.heal(host))
        case "connection_breaks" if agent is not None and agent.wire is not None:
            agent.wire.close(by_agent=True)
            agent.hung_up()
        case "evict" if agent is not None:
            world.tell(NodeEvicted(name=agent.host, reason="slow"))
        case "readmit" if world.state.evicted:
            world.tell(NodeReadmitted(name=sorted(world.state.evicted)[fault.which % len(world.state.evicted)]))
        case "rank_fails":
            world.rank_exits(fault.which, -9 if fault.which % 2 else 1, None if fault.which % 2 else BUG)
        case "rank_lost_peer":
            world.rank_exits(fault.which, 1, PEER)
        case "rank_ends":
            world.rank_exits(fault.which, 0)
        case "all_end_well":
            world.all_end_well()
        case "spawn_fails" if agent is not None:
            world.spawn_fails.add(agent.host)
        case "store_dies":
            world.store_dies()
        case "controller_dies":
            world.controller_dies()
            world.after(fault.lasts_s, world.controller_resumes)
        case "controller_dies_between" if world.shell is not None:
            world.dies_in = fault.which % 3
        case "journal_cut":
            world.journal_is_cut(len(world.journal) * fault.which // 6)
            world.after(fault.lasts_s, world.controller_resumes)
        case "restart":
            world.tell(RestartAsked())
        case "slow":
            world.slow = not world.slow
        case "stop":
            world.stop_asked = True
            world.tell(SignalReceived(signal=15, again=fault.which % 2 == 1))
        case _:
            pass


def play(world: World, faults: list[Fault], begun: bool = False) -> None:
    """Let all faults happen, in a job that has `begun` or not; a controller that died between two actions is back soon."""
    if begun:
        world.run(10.0, lambda: is_up(world))
    for fault in faults:
        world.run(fault.after_s)
        if world.shell is None and fault.kind in ("evict", "readmit", "restart", "stop"):
            world.controller_resumes()
        inflict(world, fault)
    world.run(5.0)


def calm_down(world: World) -> None:
    """Mend all that can be mended, and see that there are enough nodes."""
    world.slow, world.dies_in = False, None
    world.spawn_fails.clear()
    for host in {host for host, _ in world.cut}:
        world.heal(host)
    world.controller_resumes()
    for name in tuple(world.state.evicted):
        world.tell(NodeReadmitted(name=name))
    for _ in range(world.policy.most - sum(not (agent.leaving or agent.told) for agent in world.living())):
        world.boot(f"host-{len(world.agents)}")


def is_over(world: World) -> bool:
    return world.state.phase == "over"


def is_up(world: World) -> bool:
    state = world.state
    return state.phase == "running" and state.started == set(state.places)


def ends_as_it_should(world: World) -> None:
    """After the chaos: a whole world runs again within a bounded time, does its work, and everybody goes home."""
    calm_down(world)
    # what was under way may still bring an attempt down (a peer's death, a late loss), so once up is not enough
    for _ in range(3):
        assert world.run(60.0, lambda: is_over(world) or is_up(world)), f"stuck: {world.state}"
        world.run(6.0, lambda: is_over(world))
    assert is_over(world) or is_up(world), f"no peace: {world.state}"
    world.all_end_well()
    assert world.run(30.0, lambda: is_over(world)), f"does not end: {world.state}"
    assert world.run(30.0, lambda: not world.living()), f"left over: {[agent.id for agent in world.living()]}"
    assert plain(replay(world.policy, world.journal)) == plain(world.state), "the journal tells another story"


PLAYS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PLAYS
@given(policies(), st.lists(FAULTS, min_size=1, max_size=30), SEEDS, st.integers(0, 2), st.booleans())
def test_a_job_gets_on_again_whatever_happened(
    policy: CorePolicy, faults: list[Fault], seed: int, spare: int, begun: bool
) -> None:
    world = World(policy, policy.most + spare, seed)
    play(world, faults, begun)
    ends_as_it_should(world)


@PLAYS
@given(policies(max_restarts=0), st.lists(HARMLESS, min_size=1, max_size=30), SEEDS, st.booleans())
def test_no_lost_node_and_no_dead_controller_counts_as_a_restart(
    policy: CorePolicy, faults: list[Fault], seed: int, begun: bool
) -> None:
    world = World(msgspec.structs.replace(policy, join_timeout_s=600.0, wait_for_nodes_s=None), policy.most + 1, seed)
    play(world, faults, begun)
    ends_as_it_should(world)
    finish = world.state.finish
    assert finish is not None
    assert finish.outcome == "done", finish


@PLAYS
@given(policies(), st.lists(FAULTS, max_size=10), st.builds(Fault, st.just("stop"), MOMENTS, st.integers(0, 1)), SEEDS)
def test_a_stopped_job_ends_soon_whatever_happened(
    policy: CorePolicy, faults: list[Fault], stop: Fault, seed: int
) -> None:
    world = World(policy, policy.most, seed)
    play(world, [*faults, stop], begun=True)
    calm_down(world)
    assert world.run(60.0, lambda: is_over(world) and not world.living()), f"does not end: {world.state}"


@settings(PLAYS, max_examples=EXAMPLES // 8)
@given(policies(), st.lists(st.sampled_from((0.0, 0.3, 1.0)), min_size=5, max_size=5), SEEDS, st.booleans())
def test_a_job_of_which_all_nodes_are_told_to_leave_ends_once_and_begins_nothing(
    policy: CorePolicy, apart_s: list[float], seed: int, controller_dies: bool
) -> None:
    world = World(policy, policy.most, seed)
    assert world.run(60.0, lambda: is_up(world))
    for agent, after_s in zip(world.living(), apart_s, strict=False):
        agent.is_told()
        if controller_dies:
            inflict(world, Fault("controller_dies", 0.0, lasts_s=0.3))
            controller_dies = False
        world.run(after_s)
    assert world.run(30.0, lambda: is_over(world) and not world.living()), f"does not end: {world.state}"
    assert world.state.finish is not None
    assert world.state.finish.outcome == "stopped"
    assert world.state.attempt == 0, "an attempt was begun that ends at once"


def test_a_rank_that_ended_before_its_journal_was_cut_is_not_awaited_for_ever() -> None:
    """Its end is reported again before the store's opening is: it must be kept until then."""
    policy = CorePolicy(
        fewest=2,
        most=3,
        max_restarts=0,
        progress_after_s=600,
        restart_grace_s=0.0,
        shutdown_timeout_s=5.0,
        join_timeout_s=15.0,
        last_call_s=0.0,
        many=True,
    )
    losses = [(0.3, 0), (0.0, 0), (2.9, 0), (0.0, 0), (0.0, 1), (3.2, 0)]
    faults = [Fault("power_loss", after_s, which) for after_s, which in losses]
    faults[3:3] = [Fault("cut", 0.0), Fault("cut", 0.0)]
    faults += [
        Fault("controller_dies_between", 0.3),
        Fault("host_joins", 3.2),
        Fault("host_joins", 1.0),
        Fault("rank_ends", 0.0),
        Fault("journal_cut", 0.0, 4),
    ]
    world = World(policy, policy.most, 0)
    play(world, faults)
    ends_as_it_should(world)


@PLAYS
@given(
    policies(max_restarts=1000),
    st.lists(FAULTS.filter(lambda fault: fault.kind != "journal_cut") | st.integers(0, 24), min_size=1, max_size=30),
    SEEDS,
    st.booleans(),
)
def test_no_attempt_mixes_versions_whatever_happens(
    policy: CorePolicy, faults: list[Fault | int], seed: int, begun: bool
) -> None:
    world = CodeWorld(policy, policy.most + 1, seed)
    world.tell(CodeCaptured(version=version(1, 0)))
    if begun:
        world.run(10.0, lambda: is_up(world))
    for fault in faults:
        if isinstance(fault, int):
            world.run(0.3)
            world.about_code(fault)
            continue
        world.run(fault.after_s)
        if world.shell is None and fault.kind in ("evict", "readmit", "restart", "stop"):
            world.controller_resumes()
        inflict(world, fault)
    world.run(5.0)
    ends_as_it_should(world)


@PLAYS
@given(
    policies(max_restarts=1000),
    st.lists(FAULTS.filter(lambda fault: fault.kind != "journal_cut") | st.integers(0, 59), min_size=1, max_size=40),
    SEEDS,
    st.booleans(),
)
def test_all_ranks_of_an_attempt_start_from_one_point_whatever_happens(
    policy: CorePolicy, faults: list[Fault | int], seed: int, begun: bool
) -> None:
    world = CheckpointWorld(policy, policy.most + 1, seed)
    if begun:
        world.run(10.0, lambda: is_up(world))
    for fault in faults:
        if isinstance(fault, int):
            world.run(0.3)
            world.about_checkpoints(fault)
            continue
        world.run(fault.after_s)
        if world.shell is None and fault.kind in ("evict", "readmit", "restart", "stop"):
            world.controller_resumes()
        inflict(world, fault)
    world.run(5.0)
    world.lag_s.clear()
    world.is_gone = False
    if world.state.phase != "over":
        world.run(120.0)  # attempts that find damage take a few seconds each
    ends_as_it_should(world)
