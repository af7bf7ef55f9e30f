"""Which node reads which units: shards are read by the rank that saved them, what lies in one piece by everybody."""

from __future__ import annotations

import base64

import pytest

from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.area import UnitTable
from robust_run.ckpt_io.ahead.belonging import SOMEBODYS, belonging
from robust_run.ckpt_io.ahead.rules import EVERYBODYS
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.rules.types import Chunk, LogicalFile, Manifest, Tensor

UNIT = 1 << 20
DIGESTS = base64.b64encode(bytes(32)).decode()
PAIRS = ((0, 2), (2, 2))


def made(ranks: int = 4, *, shards: int = 0, names: str = "rank-{:05d}.bin", world_size: str | None = None) -> Manifest:
    """Of two units a rank: a shard each of tensors that have so many shards; 0: as many as there are ranks."""
    numbers, shards = 2 * UNIT // 4, shards or ranks
    files = tuple(
        LogicalFile(name=names.format(rank), size_bytes=2 * UNIT, unit_bytes=UNIT, digests=DIGESTS)
        for rank in range(ranks)
    )
    chunks = [
        Chunk(offsets=(rank % shards * numbers,), sizes=(numbers,), file=rank, offset_bytes=0) for rank in range(ranks)
    ]
    tensors = tuple(
        Tensor(
            name=f"w{first}", dtype="float32", sizes=(shards * numbers,), chunks=tuple(chunks[first : first + shards])
        )
        for first in range(0, ranks, shards)
    )
    facts = {"world_size": world_size or str(ranks)}
    return Manifest(uuid="0" * 32, created_s=1.0, files=files, tensors=tensors, facts=facts)


def whose(manifest: Manifest, nodes: tuple[tuple[int, int], ...] = PAIRS, world_size: int = 4) -> list[int]:
    return belonging(manifest, UnitTable(manifests.layouts(manifest)), nodes, world_size)


def test_a_shard_is_read_by_the_node_of_the_rank_that_saved_it() -> None:
    assert whose(made()) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_node_that_shares_nothing_is_somebody_else() -> None:
    assert whose(made(), ((2, 2),)) == [SOMEBODYS] * 4 + [0] * 4


@pytest.mark.parametrize(
    "manifest",
    [made(shards=1), made(names="file-{}"), made(world_size="8"), made(shards=2)],
    ids=[
        "states of all ranks, and stages of a pipeline",
        "files of no rank",
        "saved by other ranks",
        "shards with replicas",
    ],
)
def test_what_may_be_read_by_anybody_is_everybodys(manifest: Manifest) -> None:
    assert whose(manifest) == [EVERYBODYS] * 8


def test_each_node_plans_its_own_shards_and_leaves_the_others_for_when_they_are_wanted() -> None:
    sizes, belongs = [UNIT] * 8, whose(made())
    plans = [rules.plan(sizes, rules.Share(own, 2), None, belongs) for own in range(2)]
    assert [plan.order for plan in plans] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [plan.later for plan in plans] == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert [plan.planned_bytes for plan in plans] == [4 * UNIT] * 2


def test_what_others_read_takes_no_room_from_what_this_node_reads() -> None:
    plan = rules.plan([UNIT] * 8, rules.Share(1, 2), 5 * UNIT, whose(made()))
    assert (plan.order, plan.later, plan.left_out) == ((4, 5, 6, 7), (0,), (1, 2, 3))
    plan = rules.plan([UNIT] * 8, rules.Share(1, 2), 3 * UNIT, whose(made()))
    assert (plan.order, plan.later, plan.left_out) == ((4, 5, 6), (), (7, 0, 1, 2, 3))
