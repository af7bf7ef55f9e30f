"""A leader that lost sight of its nodes: it gives nobody up and decides nothing, and stands down by when it last heard anybody.

The real service and core, in virtual time, among nodes that are stand-ins: they speak every second, or do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from robust_run.launcher.control.messages import Hello, Welcome
from robust_run.launcher.controller.out_of_sight import Sight, SightWatch, silent_after_s
from robust_run.launcher.controller.service import LOOK_S, Service
from robust_run.launcher.core.failure_detector import NEARLY_S
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.core.step import step
from robust_run.launcher.model.events import Event, Tick
from robust_run.launcher.model.job import JobSpec, ManyNodes, NodeInfo, OutputStreams
from robust_run.launcher.model.lease_times import LONGEST_LEASE_S, LeaseTimes
from robust_run.launcher.model.node_events import JobStarted, NodeLost

LOST_S = LeaseTimes(3.0).lost_s
AT_ONCE_S = 2 * LOOK_S + NEARLY_S
"""What a look, and a second one, may take."""


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


@dataclass
class StandIn:
    """A peer as far as the service looks at it."""

    id: str
    name: str
    last_heard_s: float
    clock_ahead_s: float = 0.0
    dropped: str = ""

    def send_frame(self, frame: bytes) -> None:
        pass

    def drop(self, why: str) -> None:
        self.dropped = why


class Mind:
    """A controller with the real core; it keeps what it may not decide on."""

    def __init__(self, fewest: int, clock: Clock) -> None:
        self.policy = CorePolicy(
            fewest=fewest,
            most=fewest,
            max_restarts=3,
            progress_after_s=600.0,
            restart_grace_s=3.0,
            shutdown_timeout_s=30.0,
            many=True,
        )
        self.state, self.told, self.waiting, self.waits = JobState(), [], [], False
        self._clock = clock
        self.told: list[Event]
        self.waiting: list[Event]

    def tell(self, event: Event) -> None:
        if self.waits:
            self.waiting.append(event)
            return
        self.told.append(event)
        step(self.policy, self.state, event, self._clock.now_s)

    def go_on(self) -> None:
        self.waits = False
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            self.tell(event)

    def see_usage(self, node: str, usage: Any) -> None:
        pass


class Server:
    def __init__(self) -> None:
        self.heard: list[StandIn] = []

    def take_heard(self) -> list[StandIn]:
        heard, self.heard = self.heard, []
        return heard

    def send_all(self, peers: Any, message: Any) -> None:
        pass


class Leader:
    """A leader on node 0 and its nodes, of which the first `fewest` are needed."""

    def __init__(self, nodes: int, fewest: int, standby: int = 2, late_s: float = 0.0) -> None:
        self.clock = Clock()
        self.mind = Mind(fewest, self.clock)
        self.late_s = late_s
        self.stood_down: list[float] = []
        self.silent: set[int] = set()
        many = ManyNodes(fewest=fewest, most=fewest, host="n0", port=1, job="job", controller_standby=standby)
        spec = JobSpec(
            argv=("train",),
            script="train",
            is_python=False,
            nproc=1,
            run_id="run",
            rdzv_id="job",
            log_dir=None,
            streams=OutputStreams(redirects=(), tee=(), shown=()),
            many=many,
        )
        self.service = Service(spec, many, "run", self.clock, lambda _: None, "0")
        self.service.controller = self.mind  # type: ignore[assignment]
        self.server = Server()
        self.service.server = self.server  # type: ignore[assignment]
        self.service.lease_record.is_kept = lambda: True
        self.service.on_out_of_sight = lambda: self.stood_down.append(self.clock.now_s)
        self.mind.tell(JobStarted())
        self.peers: dict[int, StandIn] = {}
        self.spoke_s: dict[int, float] = {}
        for node in range(nodes):
            self.join(node)
        self.passes(2.0)

    def join(self, node: int) -> None:
        peer = self.peers[node] = StandIn(str(node), f"n{node}", self.clock.now_s)
        info = NodeInfo(id=str(node), name=f"n{node}", nproc=1, candidate=f"10.0.0.{node}:7")
        assert isinstance(self.service.joined(peer, Hello(node=info)), Welcome)  # type: ignore[arg-type]
        self.spoke_s[node] = self.clock.now_s + node * 0.13  # not all at the same moment

    def passes(self, for_s: float, every_s: float = LOOK_S) -> None:
        """Let time pass, in which those that are not silent speak every second."""
        for _ in range(round(for_s / every_s)):
            self.clock.now_s += every_s
            now_s = self.clock.now_s
            for node, peer in self.peers.items():
                if node not in self.silent and now_s >= self.spoke_s[node] + 1.0:
                    self.spoke_s[node] = peer.last_heard_s = now_s
                    self.server.heard.append(peer)
                    self.service.grant(peer, self.late_s)  # type: ignore[arg-type]
            self.service.look()

    @property
    def lost(self) -> list[str]:
        return [event.node for event in self.mind.told if isinstance(event, NodeLost)]


def test_a_leader_that_is_cut_off_from_all_gives_nobody_up_and_stands_down_after_a_lease() -> None:
    leader = Leader(nodes=4, fewest=2)
    leader.silent = {1, 2, 3}
    began_s = leader.clock.now_s
    leader.passes(LOST_S + AT_ONCE_S)
    assert leader.lost == []
    assert leader.stood_down
    assert leader.stood_down[0] - began_s <= LOST_S + AT_ONCE_S
    leader.passes(60.0)
    assert leader.lost == [], "another leads by now"


def test_nothing_is_decided_meanwhile_and_all_of_it_when_a_node_is_heard_again() -> None:
    leader = Leader(nodes=4, fewest=2)
    leader.silent = {1, 2, 3}
    leader.passes(2.5)
    told = len(leader.mind.told)
    leader.mind.tell(Tick())
    leader.passes(0.2)
    assert len(leader.mind.told) == told
    leader.silent = {2, 3}
    leader.passes(1.2)
    assert leader.mind.told[told] == Tick()
    leader.passes(LOST_S - 1.5)
    assert leader.lost == [], "those that were silent with it are waited for from then on"
    leader.passes(2.0)
    assert sorted(leader.lost) == ["2", "3"]
    assert not leader.stood_down


def test_a_node_that_returns_on_a_new_connection_is_seen_as_well() -> None:
    leader = Leader(nodes=3, fewest=2)
    leader.silent = {1, 2}
    leader.passes(3.0)
    leader.mind.tell(Tick())
    leader.silent = {2}
    leader.join(1)
    assert leader.mind.waiting == []


@pytest.mark.parametrize(
    ("nodes", "fewest", "standby", "gone"),
    [
        (2, 2, 2, {1}),  # the other could not go on alone either
        (3, 2, 2, {1}),
        (4, 4, 2, {1, 2, 3}),
        (4, 3, 2, {2, 3}),
        (3, 1, 2, {1, 2}),  # this one can
        (3, 2, 0, {1, 2}),  # nobody is in line to lead
    ],
)
def test_where_others_could_not_lead_the_job_silent_nodes_are_given_up_as_ever(
    nodes: int, fewest: int, standby: int, gone: set[int]
) -> None:
    leader = Leader(nodes, fewest, standby)
    leader.silent = gone
    leader.passes(LOST_S + AT_ONCE_S)
    assert {int(node) for node in leader.lost} == gone
    assert not leader.stood_down


def test_a_node_that_was_lost_before_may_be_back_where_this_leader_cannot_see_it() -> None:
    leader = Leader(nodes=3, fewest=2)
    leader.silent = {2}
    leader.passes(10.0)
    assert leader.lost == ["2"]
    leader.silent = {1, 2}
    leader.passes(LOST_S + AT_ONCE_S)
    assert leader.lost == ["2"]
    assert leader.stood_down


def test_of_a_majority_that_is_out_of_sight_nobody_is_given_up() -> None:
    leader = Leader(nodes=6, fewest=4)
    leader.silent = {1, 2, 3, 4}
    leader.passes(LOST_S + AT_ONCE_S)
    assert leader.lost == []
    assert leader.stood_down


def test_long_leases_of_silent_nodes_do_not_delay_it() -> None:
    """They may run workers for 18 s more; that is the next leader's to wait for."""
    leader = Leader(nodes=3, fewest=2, late_s=3.0)
    leader.passes(10.0)
    leader.silent = {1, 2}
    began_s = leader.clock.now_s
    leader.passes(LOST_S + 3.0 + AT_ONCE_S)
    assert leader.stood_down
    assert leader.stood_down[0] - began_s < LONGEST_LEASE_S / 2


def test_time_in_which_this_process_stood_still_is_no_silence_of_others() -> None:
    leader = Leader(nodes=3, fewest=2)
    leader.silent = {1, 2}
    leader.passes(20.0, every_s=5.0)
    assert not leader.stood_down
    leader.silent = set()
    leader.passes(2.0)
    assert (leader.lost, leader.stood_down, leader.mind.waits) == ([], [], False)


@given(
    some.integers(3, 7),
    some.integers(1, 6),
    some.lists(some.tuples(some.sampled_from(("cut", "heal", "one")), some.floats(0.1, 12.0)), max_size=8),
    some.sampled_from((0.0, 0.4, 1.5, 3.0)),
)
def test_whatever_happens_to_the_leaders_cable_no_healthy_node_is_given_up(
    nodes: int, fewest: int, story: list[tuple[str, float]], late_s: float
) -> None:
    """Only `one` is ever struck itself, for good; the rest is the leader's cable."""
    fewest = min(fewest, nodes - 1)
    leader = Leader(nodes, fewest, late_s=late_s)
    others, dead = set(range(1, nodes)), set[int]()
    is_cut = False
    for kind, for_s in story:
        dead = dead or ({nodes - 1} if kind == "one" else dead)
        is_cut = is_cut if kind == "one" else kind == "cut"
        leader.silent = others if is_cut else dead
        leader.passes(for_s)
        if leader.stood_down:
            break
    if fewest > 1:  # else it goes on alone
        assert {int(node) for node in leader.lost} <= dead
    else:
        assert not leader.stood_down


def test_a_node_is_out_of_sight_before_one_that_went_with_it_is_given_up_and_not_between_two_heartbeats() -> None:
    assert silent_after_s(LeaseTimes(3.0), 1.0) == 2.0
    assert silent_after_s(LeaseTimes(1.0), 1.0) == 1.5


def test_who_is_lost_from_sight_and_who_may_lead_decide_alone() -> None:
    seen = Sight(answering=1, silent=2, away=0, can_lead=True, heard_s=0.0, late_s=0.0)
    watch = SightWatch(LeaseTimes(3.0), 1.0)
    assert not watch.look(seen, 2, 2.0)
    assert watch.is_lost
    assert not watch.look(None, 2, 2.1)
    assert not watch.is_lost
