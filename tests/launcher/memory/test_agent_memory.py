"""What an agent tells its node's keeper, in which order, and what it reports of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from robust_run.ckpt_io.memory.agent_protocol import Bring, KeeperSetup, Source
from robust_run.launcher.agent.memory.attempts import brought
from robust_run.launcher.agent.memory.memory import AgentMemory
from robust_run.launcher.model.actions import StartAttempt
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import (
    MemoryNeeds,
    MemoryPeer,
    MemoryPeers,
    MemoryStrides,
    PartsElsewhere,
    ResumePoint,
)
from robust_run.launcher.records.token import keeper_key


class Keeper:
    """Notes what it is told."""

    def __init__(self, told: list[Any], ready: Callable[[int], None]) -> None:
        self.told, self.ready = told, ready
        self.can_begin = True
        self.when_needed: Callable[[int, int, int], None] = lambda *_: None

    def begin(self, order: StartAttempt) -> bool:
        self.told.append(("begin", order.attempt))
        return self.can_begin

    def copy_to(self, order: MemoryPeers) -> None:
        self.told.append(("copy", order.attempt, order.peers[0].name))

    def go_by(self, order: MemoryStrides) -> None:
        self.told.append(("go by", order.attempt, order.keeps, order.copies))

    def attach(self, listen: object) -> None:
        self.told.append("attach")

    def open(self) -> None:
        self.told.append("open")

    def end(self) -> None:
        self.told.append("end")


class Ground:
    """An agent's memory on a node that is none."""

    def __init__(self, most: int = 2, copies: int = 1) -> None:
        self.told: list[Any] = []
        self.reported: list[Any] = []
        self.keepers: list[Keeper] = []
        spec = SimpleNamespace(ckpt_copies=copies, many=SimpleNamespace(most=most))
        node = SimpleNamespace(spec=spec, memory_folder="/keeper", address="10.0.0.1")
        self.memory = AgentMemory(node, "a", self.reported.append, lambda _, ready: self._made(ready))  # type: ignore[arg-type]

    def _made(self, ready: Callable[[int], None]) -> Keeper:
        self.keepers.append(Keeper(self.told, ready))
        return self.keepers[-1]

    def start(self, attempt: int, **more: Any) -> str:
        order = order_of(attempt, **more)
        folder = self.memory.folder_for(order)
        self.told.append("workers")
        self.memory.begun(order)
        return folder


def order_of(attempt: int, **more: Any) -> StartAttempt:
    placement = Placement(node="a", group_rank=0, first_rank=0, nproc=2)
    return StartAttempt(
        attempt=attempt, address="10.0.0.1", port=1, placements=(placement,), world_size=4, nodes=2, **more
    )


def peers(attempt: int, name: str = "b") -> MemoryPeers:
    return MemoryPeers(attempt=attempt, peers=(MemoryPeer(node="a", host=f"ip-{name}", port=9, name=name),))


def test_the_first_workers_do_not_wait_for_their_keeper_later_ones_have_it_told_before() -> None:
    ground = Ground()
    assert ground.start(0) == "/keeper"
    assert ground.start(1) == "/keeper"
    assert ground.told == ["workers", ("begin", 0), ("begin", 1), "workers"]


def test_a_replay_saves_nothing() -> None:
    ground = Ground()
    assert ground.start(0, replay_steps=5) == ""
    assert ground.told == ["workers"]


def test_workers_are_told_of_no_keeper_where_there_is_none() -> None:
    ground = Ground()
    ground.start(0)
    ground.keepers[0].can_begin = False
    assert ground.start(1) == ""


def test_where_other_keepers_reach_it_is_said_when_it_is_ready_and_again_in_each_attempt() -> None:
    ground = Ground()
    ground.start(0)
    assert ground.reported == []
    ground.keepers[0].ready(77)
    ground.start(1)
    assert [(each.attempt, each.host, each.port) for each in ground.reported] == [
        (0, "10.0.0.1", 77),
        (1, "10.0.0.1", 77),
    ]
    ground.keepers[0].ready(0)
    assert ground.reported[-1].port == 0
    ground.start(2)
    assert len(ground.reported) == 3, "it says so itself when it is there again"


def test_that_one_takes_no_copies_is_not_news() -> None:
    ground = Ground(copies=0)
    ground.start(0)
    ground.keepers[0].ready(0)
    assert ground.reported == []


@pytest.mark.parametrize("is_early", [True, False])
def test_where_copies_go_is_told_once_the_attempt_has_begun_here(is_early: bool) -> None:
    ground = Ground()
    ground.start(0)
    if is_early:
        ground.memory.obey(peers(1))
        assert ("copy", 1, "b") not in ground.told
    ground.start(1)
    if not is_early:
        ground.memory.obey(peers(1))
    assert ground.told.count(("copy", 1, "b")) == 1
    ground.start(2)
    assert ground.told.count(("copy", 1, "b")) == 1, "it was of another attempt"


def test_what_the_keeper_needs_is_reported_and_what_all_go_by_is_told_to_it() -> None:
    ground = Ground()
    ground.memory.obey(MemoryStrides(attempt=0, nodes=("a",), keeps=2, copies=4))
    assert ground.told == [], "there is no keeper yet"
    ground.start(0)
    ground.keepers[0].when_needed(0, 2, 8)
    assert ground.reported == [MemoryNeeds(attempt=0, node="a", keeps=2, copies=8)]
    ground.memory.obey(MemoryStrides(attempt=0, nodes=("a", "b"), keeps=2, copies=8))
    assert ground.told[-1] == ("go by", 0, 2, 8)


def test_a_node_without_a_keeper_says_how_much_room_one_would_have() -> None:
    ground = Ground()
    ground.memory._node.spec.ckpt_memory_bytes = 123 << 20
    held = ground.memory.held()
    assert held.generations == ()
    assert held.room_bytes is not None and 0 < held.room_bytes <= 123 << 20


def test_a_standby_of_a_job_on_one_node_has_a_keeper_before_it_has_ranks() -> None:
    ground = Ground(most=1)
    ground.memory.attach(lambda *_: None)
    assert ground.told == ["attach", "open"]
    ground.keepers[0].ready(7)
    assert [(each.attempt, each.port) for each in ground.reported] == [(-1, 7)]
    ground.start(0)
    assert ground.told[2:] == [("begin", 0), "workers"]
    several = Ground(most=2)
    several.memory.attach(lambda *_: None)
    assert several.told == []


def test_what_other_nodes_have_is_named_rank_by_rank() -> None:
    point = ResumePoint(source="peer", step=40, uuid="m", name="memory-3-40", address="rrck+memory://3/40")
    parts = (
        PartsElsewhere(ranks=(0,), of="c", name="b", host="ip-b", port=7),
        PartsElsewhere(ranks=(1,), name="d", host="ip-d", port=8),
    )
    (bring,) = brought(order_of(4, resume=point, elsewhere=parts))
    assert bring == Bring(
        attempt=4, from_attempt=3, step=40, sources=(Source(0, "ip-b", 7, "b"), Source(1, "ip-d", 8, "d"))
    )
    assert brought(order_of(4, resume=point)) == ()


def test_the_key_of_keepers_says_nothing_of_the_token_and_is_of_one_job() -> None:
    key = keeper_key("token of a job", "run-1")
    assert len(key) == 32 and key == keeper_key("token of a job", "run-1")
    assert key not in {keeper_key("token of a job", "run-2"), keeper_key("token of another", "run-1")}
    assert b"token" not in key
    assert KeeperSetup(folder="/x").key == b""
