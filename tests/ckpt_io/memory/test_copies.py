"""Two keepers: what a node's ranks save is copied to another one, whole or not at all, and saving never waits for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from keepers import KeeperGround, contents, load, save

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.memory.agent_protocol import Bring, Source
from robust_run.ckpt_io.memory.client import MemoryClient

Nodes = Callable[..., KeeperGround]
Ranks = Callable[..., MemoryClient]


def bring(to: KeeperGround, step: int, *sources: tuple[int, KeeperGround], attempt: int = 1) -> None:
    found = tuple(Source(rank, "127.0.0.1", at.port, "node-x") for rank, at in sources)
    to.tell(Bring(attempt=attempt, from_attempt=attempt - 1, step=step, sources=found))


def pair(node: Nodes, ranks: tuple[int, ...] = (0,)) -> tuple[KeeperGround, KeeperGround]:
    """A node with ranks, and a standby that keeps its copies."""
    first, second = node(), node()
    first.begin_attempt(0, ranks)
    first.copy_to(second)
    return first, second


def test_what_is_saved_is_copied_and_the_newest_two_stay(node: Nodes, rank_of: Ranks) -> None:
    first, second = pair(node, (0, 1))
    both = [rank_of(first, rank, 2) for rank in (0, 1)]
    for step in (1, 2, 3, 4, 5):
        assert all(save(client, step, rank, world=2) for rank, client in enumerate(both))
        second.copies_until(lambda held, step=step: bool(held) and held[0] == (0, step, (0, 1)))
    assert len(second.copies()) == 2 and second.look() == []
    assert first.notes == second.notes == []


def test_a_node_whose_ranks_have_no_buffers_yet_gets_what_there_is_once_they_have(node: Nodes, rank_of: Ranks) -> None:
    """Nothing more is saved meanwhile: a step may take long, and the other node may be lost in it."""
    first, second = node(), node()
    first.begin_attempt(0, (0,), world=2)
    second.begin_attempt(0, (1,), world=2)
    assert save(rank_of(first, 0, 2), 1, world=2)
    assert first.look() == [(0, 1, (0,))]
    first.copy_to(second)
    assert second.copies() == []
    assert rank_of(second, 1, 2).begin(1, 10_000)
    second.copies_until(lambda held: held == [(0, 1, (0,))])
    assert first.notes == second.notes == []


def test_a_rank_starts_from_its_copy_on_the_node_that_kept_it(node: Nodes, rank_of: Ranks) -> None:
    first, second = pair(node)
    client = rank_of(first)
    assert save(client, 7)
    second.copies_until(lambda held: (0, 7, (0,)) in held)
    first.kill()
    bring(second, 7, (0, second))
    second.begin_attempt(1, (0,), resumed_step=7)
    assert second.look() == [(0, 7, (0,))] and second.copies() == []
    again = rank_of(second, attempt=1)
    assert load(again, 0, 7) == contents(7, 0, 10_000)
    assert [save(again, step, attempt=1) for step in (8, 9, 10, 11)] == [True] * 4


def test_parts_are_brought_from_two_nodes_and_are_the_same(node: Nodes, rank_of: Ranks) -> None:
    first, second = pair(node)
    second.begin_attempt(0, (1,), world=2)
    first.begin_attempt(0, (0,), world=2)
    clients = [rank_of(first, 0, 2), rank_of(second, 1, 2)]
    assert save(clients[0], 3, 0, 3_000_000, world=2) and save(clients[1], 3, 1, 3_000_000, world=2)
    assert first.look() == [(0, 3, (0,))] and second.look() == [(0, 3, (1,))]
    third = node()
    bring(third, 3, (0, first), (1, second))
    third.begin_attempt(1, (0, 1), resumed_step=3)
    for rank in (0, 1):
        assert load(rank_of(third, rank, 2, 1), 0, 3) == contents(3, rank, 3_000_000)
    assert third.look() == [(0, 3, (0, 1))]


def test_a_part_that_nobody_has_is_said_to_be_lost_and_by_whom(node: Nodes, rank_of: Ranks) -> None:
    first, second = node(), node()
    bring(second, 3, (0, first))
    second.begin_attempt(1, (0,), resumed_step=3)
    with pytest.raises(
        CheckpointError, match="node-x did not give its copy: step 3 of attempt 0 is not held for rank 0"
    ):
        load(rank_of(second, attempt=1), 0, 3)
    assert "rank 0 could not be brought" in second.noted("node-x")
    first.kill()
    bring(second, 3, (0, first), attempt=2)
    second.begin_attempt(2, (0,), resumed_step=3)
    with pytest.raises(CheckpointError, match="node-x cannot be reached"):
        load(rank_of(second, attempt=2), 1, 3)
