"""Who is let in, what becomes of silence, and whose orders and signals count, with peers that are stand-ins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from robust_run.launcher.control import frames
from robust_run.launcher.control.greeting import digest
from robust_run.launcher.control.messages import (
    CandidateList,
    ControlNotice,
    EventReport,
    Hello,
    JoinRefused,
    Leaving,
    Orders,
    ToldToLeave,
    Welcome,
)
from robust_run.launcher.controller.other_versions import OtherVersions
from robust_run.launcher.controller.service import Service
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.core.step import step
from robust_run.launcher.model.actions import Say
from robust_run.launcher.model.events import Event, RankExited, SignalReceived
from robust_run.launcher.model.job import JobSpec, ManyNodes, NodeInfo, OutputStreams
from robust_run.launcher.model.lease_times import ETCD_LEASE_S
from robust_run.launcher.model.node_events import (
    JobStarted,
    NodeCannotStart,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReturned,
)
from robust_run.version import __version__

POLICY = CorePolicy(
    fewest=2, most=2, max_restarts=3, progress_after_s=600.0, restart_grace_s=3.0, shutdown_timeout_s=30.0, many=True
)


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
    name: str = ""
    last_heard_s: float = 100.0
    clock_ahead_s: float = 0.0
    sent: list[Any] = field(default_factory=list)
    dropped: str = ""

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def send_frame(self, frame: bytes) -> None:
        self.sent.append(frames.decode_from_controller(frame[4:]))

    def drop(self, why: str) -> None:
        self.dropped = why


class Mind:
    """A controller that only keeps what it is told, and a core's state."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.said: list[str] = []
        self.policy, self.state, self.book = POLICY, JobState(), self

    def say(self, text: str) -> None:
        self.said.append(text)

    def tell(self, event: Event) -> None:
        self.told.append(event)
        step(POLICY, self.state, event, 100.0)


class Server:
    """Where the service sends to many, and who has said something."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def take_heard(self) -> list[Any]:
        heard, self.heard = self.heard, []
        return heard

    def send_all(self, peers: Any, message: Any) -> None:
        for peer in peers:
            peer.send(message)


class World:
    """A service and all around it."""

    def __init__(self, term: int = 1, setup: bytes | None = b"", **many: Any) -> None:
        self.clock, self.notes, self.mind = Clock(), [], Mind()
        self.many = ManyNodes(fewest=2, most=2, host="gpu-0", port=29400, job="job", **many)
        spec = JobSpec(
            argv=("train",),
            script="train",
            is_python=False,
            nproc=1,
            run_id="run",
            rdzv_id="job",
            log_dir=None,
            streams=OutputStreams(redirects=(), tee=(), shown=()),
            many=self.many,
        )
        self.service = Service(spec, self.many, "run", self.clock, self.notes.append, "host", term, setup)
        self.service.controller = self.mind  # type: ignore[assignment]
        self.service.server = Server()  # type: ignore[assignment]

    def join(self, node: str, name: str = "", peer: StandIn | None = None, **hello: Any) -> Any:
        info = NodeInfo(
            id=node,
            name=name or node,
            nproc=1,
            node_rank=hello.pop("rank", None),
            candidate=hello.pop("candidate", ""),
            version=hello.pop("version", ""),
        )
        peer = peer or StandIn(node, name or node, self.clock.now_s)
        return peer, self.service.joined(peer, Hello(node=info, **hello))  # type: ignore[arg-type]

    def kinds(self) -> list[type]:
        return [type(event) for event in self.mind.told]


def test_an_agent_is_welcomed_with_what_it_must_know() -> None:
    world = World(term=4)
    _, answer = world.join("a", nnodes="2:2", job="job")
    assert answer == Welcome(term=4, run_id="run", rdzv_id="job", heartbeat_s=1.0, lease_s=3.0)
    assert world.kinds() == [NodeJoined]


def test_a_node_of_another_version_is_let_in_and_named() -> None:
    world = World()
    world.join("a", "gpu-1", version=__version__)
    world.join("b", "gpu-2", version="99.1")
    assert world.mind.said == [
        f"gpu-2 runs robust-run 99.1, its controller {__version__}: install the same on all nodes"
    ]
    assert world.kinds() == [NodeJoined, NodeJoined]


def test_nodes_of_another_version_are_named_once_each_and_not_by_the_hundred() -> None:
    others = OtherVersions("1.0")
    said = [others.note(f"gpu-{number}", "1.1") for number in (0, 0, 1, 2, 3, 4)]
    assert [bool(each) for each in said] == [True, False, True, True, True, False]
    assert said[-2].endswith("; of further nodes it is not said")
    assert others.note("gpu-9", "") == "", "one that is too old to say"


def test_with_etcd_workers_outlive_an_election() -> None:
    assert World(coordinator="etcd://a:2379").join("a")[1].lease_s == ETCD_LEASE_S
    assert World(coordinator="etcd://a:2379", lease_s=9.0).join("a")[1].lease_s == 9.0


def test_a_leader_is_stuck_only_where_nothing_runs_and_the_nodes_that_are_here_are_too_few() -> None:
    world = World()
    world.join("host")
    other, _ = world.join("a", candidate="10.0.0.2:7")
    assert world.service.succession.company() == {"others": 1, "is_stuck": False, "lost_at_s": None}
    world.service.gone(other, "the cable")
    world.mind.state.members["a"].gone, world.mind.state.members["a"].since_s = "lost", 99.0
    world.mind.state.phase, world.mind.state.usable = "gathering", 1
    assert world.service.succession.company() == {"others": 0, "is_stuck": True, "lost_at_s": 99.0}
    world.mind.state.unended = {"host"}  # it saves a last checkpoint
    assert not world.service.succession.company()["is_stuck"]
    world.mind.state.unended, world.mind.state.phase = set(), "stopping"
    assert not world.service.succession.company()["is_stuck"]


def test_one_that_cannot_start_is_noted_and_not_let_in() -> None:
    world = World()
    _, answer = world.join("a", "gpu-7", cannot_start="no such script: train.py")
    assert isinstance(answer, JoinRefused) and answer.final
    assert world.mind.told == [NodeCannotStart(name="gpu-7", reason="no such script: train.py")]
    _, answer = world.join("b", job="other", cannot_start="no such script")
    assert len(world.mind.told) == 1, "of another job"


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"job": "other"}, "job 'other' is not the one that runs here, which is 'job' (--rdzv-id, --run-id)"),
        ({"nnodes": "3:3"}, "--nnodes 3:3 on a and 2:2 on the controller's node differ"),
    ],
)
def test_who_does_not_belong_here_is_refused_for_good(hello: dict[str, str], words: str) -> None:
    world = World()
    _, answer = world.join("a", **hello)
    assert isinstance(answer, JoinRefused)
    assert (answer.final, words in answer.reason) == (True, True), answer.reason
    assert world.mind.told == []


def test_a_second_node_of_a_rank_is_refused_and_waits_only_where_the_first_may_be_gone() -> None:
    world = World()
    first, _ = world.join("a", rank=1)
    _, answer = world.join("b", rank=1)
    assert (answer.final, "--node-rank 1 is taken by a" in answer.reason) == (True, True)
    world.service.gone(first, "reset")  # type: ignore[arg-type]
    _, answer = world.join("b", rank=1)
    assert answer.final is False, "the same machine after a reboot"
    world.mind.tell(NodeLost(node="a", silent_s=4.0))
    assert isinstance(world.join("b", rank=1)[1], Welcome)


def test_an_agent_that_has_obeyed_a_newer_controller_is_not_taken_in() -> None:
    _, answer = World(term=2, controller_standby=1).join("a", term=3)
    assert (answer.final, "a newer one has 3" in answer.reason) == (False, True)


def test_without_candidates_a_term_that_agents_know_and_the_journal_does_not_is_taken_over() -> None:
    world = World(term=2)
    world.join("a")
    world.service.send("a", Say(text="hello"))
    peer, answer = world.join("b", term=5)
    assert isinstance(answer, Welcome)
    assert answer.term == 5
    world.service.send("b", Say(text="hello"))
    assert peer.sent[-1].term == 5
    assert world.service.server.beat_term == 5  # type: ignore[union-attr]


def test_an_agent_that_an_earlier_controller_knew_joins_with_what_it_runs() -> None:
    world = World(term=2)
    peer, _ = world.join("a", attempt=4)
    assert world.mind.told == [NodeJoined(node=NodeInfo(id="a", name="a", nproc=1), attempt=4)]
    assert world.mind.state.strays == {"a": 4}
    assert peer.sent == [], "the core decides how it ends"


def test_until_it_knows_the_past_it_takes_nobody_in() -> None:
    world = World()
    world.service.controller = None
    assert world.join("a")[1] == JoinRefused(reason="the controller is starting", final=False)


def test_an_agent_that_connects_again_replaces_its_connection_and_says_what_was_missed() -> None:
    world = World()
    old, _ = world.join("a")
    missed = RankExited(attempt=0, rank=0, exit_code=1)
    world.join("a", events=(missed,))
    assert old.dropped
    assert world.mind.told[1:] == [missed, NodeReturned(node="a", attempt=-1, name="a")]
    world.service.gone(old, "dropped")  # type: ignore[arg-type]
    assert world.service.connected == 1, "the end of the old connection is not that of the new one"
    world.service.received(old, Leaving(reason="late"))  # type: ignore[arg-type]
    assert NodeLeft not in world.kinds()


def test_silence_counts_from_the_last_sign_of_life_whether_connected_or_not() -> None:
    world = World()
    connected, _ = world.join("a")
    cut, _ = world.join("b")
    world.service.gone(cut, "reset")  # type: ignore[arg-type]
    for world.clock.now_s in (103.3, 103.4):
        world.service.look()
    assert NodeLost not in world.kinds()
    connected.last_heard_s = 103.45
    world.service.server.heard.append(connected)  # type: ignore[union-attr]
    world.clock.now_s = 103.5
    world.service.look()
    assert [event.node for event in world.mind.told if isinstance(event, NodeLost)] == ["b"]
    for world.clock.now_s in (106.85, 106.95):
        world.service.look()
    assert [event.node for event in world.mind.told if isinstance(event, NodeLost)] == ["b", "a"]
    assert (connected.dropped, world.service.connected) == ("silent for 3.5 s", 0)
    world.service.look()
    assert world.kinds().count(NodeLost) == 2, "each is lost once"


def test_a_node_that_is_lost_after_the_controller_stood_still_itself_is_told_with_that() -> None:
    world = World()
    world.join("a")
    world.service.look()
    for world.clock.now_s in (130.0, 130.1):
        world.service.look()
    (lost,) = (event for event in world.mind.told if isinstance(event, NodeLost))
    assert lost.stood_s == pytest.approx(29.9, abs=0.2)


def test_a_node_that_is_lost_while_the_controller_runs_is_told_without() -> None:
    world = World()
    world.join("a")
    for tenths in range(40):
        world.clock.now_s = 100.0 + tenths / 10
        world.service.look()
    (lost,) = (event for event in world.mind.told if isinstance(event, NodeLost))
    assert lost.stood_s == 0.0


def test_only_the_node_of_the_controller_can_end_the_job() -> None:
    world = World()
    host, _ = world.join("host")
    other, _ = world.join("b")
    stop = SignalReceived(signal=15)
    world.service.received(other, EventReport(events=(stop,)))  # type: ignore[arg-type]
    assert stop not in world.mind.told
    world.service.received(host, EventReport(events=(stop,)))  # type: ignore[arg-type]
    assert stop in world.mind.told


def test_a_notice_is_noted_and_bounded() -> None:
    world = World()
    peer, _ = world.join("a")
    world.service.received(peer, ControlNotice(text="x" * 5000))  # type: ignore[arg-type]
    assert world.notes == ["a: " + "x" * 1000]


def test_orders_carry_the_term_and_stop_with_the_leadership() -> None:
    world = World(term=3)
    peer, _ = world.join("a")
    order = Say(text="hello", node="a")
    world.service.send("a", order)
    world.service.send("nobody", order)
    assert peer.sent == [Orders(term=3, orders=(order,))]
    world.service.leads_until_s = world.clock.now_s
    world.service.send("a", order)
    assert len(peer.sent) == 1


def test_nobody_is_in_line_before_a_successor_would_know_what_the_first_attempt_waits_for() -> None:
    """Its own command line does not say it: the founder found that out (`founding`)."""
    world = World(controller_standby=1)
    world.join("host", candidate="h:1")
    peer, welcome = world.join("b", candidate="b:1")
    world.service.look()
    assert (welcome.candidates, peer.sent) == ((), [])
    kept: list[bool] = []
    world.service.lease_record.is_kept = lambda: bool(kept)
    world.mind.tell(JobStarted(needs=3, hold_s=19.0))
    world.service.look()
    assert peer.sent == []
    kept.append(True)
    world.service.look()
    assert peer.sent == [CandidateList(term=1, candidates=("b:1",))]


def test_the_next_in_line_are_told_and_replaced_when_they_go() -> None:
    world = World(controller_standby=1)
    world.mind.tell(JobStarted())
    world.join("host", candidate="h:1")
    first, welcome = world.join("b", candidate="b:1")
    assert welcome.candidates == ("b:1",)
    last, welcome = world.join("c", candidate="c:1")
    assert welcome.candidates == ("b:1",)
    world.service.received(first, Leaving(reason="told to"))  # type: ignore[arg-type]
    assert last.sent == [CandidateList(term=1, candidates=("c:1",))]


def test_a_node_that_is_told_to_leave_is_in_line_no_more_and_makes_room_for_its_successor() -> None:
    world = World(controller_standby=1)
    world.mind.tell(JobStarted())
    world.join("host", candidate="h:1")
    first, _ = world.join("b", candidate="b:1", rank=1)
    last, _ = world.join("c", candidate="c:1")
    world.service.received(first, ToldToLeave(signal=15))  # type: ignore[arg-type]
    assert last.sent == [CandidateList(term=1, candidates=("c:1",))]
    _, answer = world.join("b2", rank=1)
    assert (answer.final, "--node-rank 1 is taken by b" in answer.reason) == (False, True), "the pod that is made anew"


def test_a_leader_knows_that_its_own_node_leaves_and_whether_anybody_can_follow() -> None:
    world = World(controller_standby=1)
    world.mind.tell(JobStarted())
    host, _ = world.join("host", candidate="h:1")
    peer, _ = world.join("b", candidate="b:1")
    world.service.received(host, ToldToLeave(signal=15))  # type: ignore[arg-type]
    assert not world.service.succession.host_has_left, "all may be told"
    world.service.received(host, Leaving(reason="told to"))  # type: ignore[arg-type]
    assert world.service.succession.host_has_left
    assert world.service.succession.line(world.clock.monotonic_s()) == "answers"
    world.clock.now_s += 3
    assert world.service.succession.line(world.clock.monotonic_s()) == "silent"
    world.service.received(peer, Leaving(reason="told to"))  # type: ignore[arg-type]
    assert world.service.succession.line(world.clock.monotonic_s()) == "nobody"
    world.mind.tell(SignalReceived(signal=15))
    assert not world.service.succession.host_has_left, "the job is being ended from here"


@pytest.mark.parametrize("snapshot", [b"a manifest", b"", None])
def test_who_asks_for_the_jobs_snapshot_is_told_and_has_not_joined(snapshot: bytes | None) -> None:
    world = World(setup=snapshot)
    _, answer = world.join("a", asks_setup=True)
    assert isinstance(answer, Welcome)
    assert answer.setup == snapshot
    assert not world.mind.told
    assert world.service.connected == 0


def test_who_joins_is_told_which_snapshot_the_job_has_and_not_what_is_in_it() -> None:
    _, answer = World(setup=b"a manifest").join("a")
    assert (answer.setup, answer.setup_digest) == (None, digest(b"a manifest"))
    assert World(setup=b"").join("a")[1].setup_digest == ""


def test_only_nodes_of_the_job_are_told() -> None:
    _, answer = World(setup=b"a manifest").join("a", asks_setup=True, job="another")
    assert isinstance(answer, JoinRefused)
