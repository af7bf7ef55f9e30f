"""Which steps a node keeps: one answer for all its ranks, the same as other nodes', and never because of a skip that no stride
would have spared."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from keepers import KeeperGround, save

from robust_run.ckpt_io.memory.agent_protocol import CopyTo, GoBy, KeeperNote, NeedsStrides
from robust_run.ckpt_io.memory.client import MemoryClient, Skipped
from robust_run.ckpt_io.memory.keeper.striding import Striding
from robust_run.ckpt_io.memory.pace import LOWER_S, MOST_KEEP, Strides

Nodes = Callable[..., KeeperGround]
Ranks = Callable[..., MemoryClient]


class Ground:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.told: list[msgspec.Struct] = []
        self.striding = Striding(self.told.append, lambda: self.now_s)
        self.striding.begin_attempt(0)

    def steps(self, first: int, last: int) -> list[int]:
        """Those that are wanted."""
        return [step for step in range(first, last) if self.striding.wants(step, step - 1 or None)]

    def needs(self) -> list[tuple[int, int]]:
        said = [each for each in self.told if isinstance(each, NeedsStrides)]
        return [(each.strides.keeps, each.strides.copies) for each in said]


def test_every_step_is_kept_where_nobody_needs_less() -> None:
    ground = Ground()
    assert ground.steps(1, 6) == [1, 2, 3, 4, 5]
    ground.striding.say(1)
    assert ground.told == []


def test_a_step_that_one_rank_keeps_all_keep_though_less_is_wanted_by_then() -> None:
    ground = Ground()
    assert ground.striding.wants(5, 4)
    ground.striding.go_by(GoBy(attempt=0, strides=Strides(4, 4)))
    assert ground.striding.wants(5, 4), "another rank comes later"
    assert ground.steps(6, 13) == [8, 12]


def test_a_skip_is_said_once_to_people_and_at_once_to_the_others() -> None:
    ground = Ground()
    for rank in range(2):
        del rank
        ground.striding.settled(3, is_kept=False)
    assert ground.striding.keeping.own == 2, "of one step, whatever the number of ranks"
    ground.striding.settled(4, is_kept=True)
    ground.striding.settled(4, is_kept=False)
    ground.striding.say(8)
    assert ground.needs() == [(4, 8)]
    assert len([each for each in ground.told if isinstance(each, KeeperNote)]) == 1
    for step in range(5, 20):
        ground.striding.settled(step, is_kept=False)
    assert ground.striding.keeping.own == MOST_KEEP
    ground.striding.say(1)
    ground.now_s += LOWER_S
    ground.striding.say(1)
    assert ground.needs()[-1] == (MOST_KEEP, 1)


def test_an_order_of_an_attempt_that_has_not_begun_waits_for_it_and_one_before_does_not_count() -> None:
    ground = Ground()
    ground.striding.go_by(GoBy(attempt=1, strides=Strides(4, 8)))
    assert ground.striding.keeping.stride == 1
    ground.striding.begin_attempt(1)
    assert (ground.striding.keeping.stride, ground.striding.copies) == (4, 8)
    ground.striding.begin_attempt(2)
    assert (ground.striding.keeping.stride, ground.striding.copies) == (1, 1)


# --- real keepers


def test_ranks_are_told_that_a_step_is_left_out_and_keep_those_that_all_nodes_keep(node: Nodes, rank_of: Ranks) -> None:
    keeper = node()
    keeper.begin_attempt(0, (0, 1))
    ranks = [rank_of(keeper, rank, 2) for rank in (0, 1)]
    assert all(save(each, 1, rank, world=2) for rank, each in enumerate(ranks))
    keeper.tell(GoBy(attempt=0, strides=Strides(4, 4)))
    keeper.look()
    kept = [
        step for step in range(2, 18) if sum(save(each, step, rank, world=2) for rank, each in enumerate(ranks)) == 2
    ]
    assert kept == [4, 8, 12, 16]
    keeper.look_until(lambda found: found[0] == (0, 16, (0, 1)))
    answer = ranks[0].begin(17, 1 << 20)
    assert isinstance(answer, Skipped) and answer.is_planned and "every 4th" in answer.reason


def test_copies_are_sent_of_the_steps_that_all_nodes_copy(node: Nodes, rank_of: Ranks) -> None:
    first, second = node(), node()
    first.begin_attempt(0, (0,))
    first.tell(GoBy(attempt=0, strides=Strides(1, 8)))
    client = rank_of(first)
    assert save(client, 1)
    first.tell(CopyTo(attempt=0, host="127.0.0.1", port=second.port, name="node-1"))
    second.copies_until(lambda held: bool(held) and held[0][1] == 1)
    for step in range(2, 17):
        assert save(client, step)
        first.look_until(lambda found, step=step: found[0][1] == step)
        if step % 8 == 0:
            second.copies_until(lambda held, step=step: held[0][1] == step)
    assert [step for _, step, _ in second.copies()] == [16, 8]
