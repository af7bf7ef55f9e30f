"""Which ranks do the same work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.pace.stages import layout_of, stages
from robust_run.tracer.types import WORLD, Group, Op, RankTrace


def groups(*members: tuple[int, ...]) -> list[Group]:
    return [Group(name=str(number), ranks=ranks) for number, ranks in enumerate(members)]


def test_without_point_to_point_all_ranks_are_of_one_stage() -> None:
    assert stages([3, 1, 0], groups((0, 1), (3,)), []) == ((0, 1, 3),)


def test_tensor_and_data_parallel_groups_join_and_the_world_does_not() -> None:
    tp, dp, world = ((0, 1), (2, 3)), ((0, 1), (2, 3)), ((0, 1, 2, 3),)
    assert stages(range(4), groups(*world, *tp, *dp), [(0, 2), (1, 3), (2, 0)]) == ((0, 1), (2, 3))


def test_the_embedding_group_of_first_and_last_stage_does_not_join_them() -> None:
    pipelines = [(0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)]
    found = stages(range(8), groups((0, 6), (1, 7), (0, 1), (2, 3), (4, 5), (6, 7), tuple(range(8))), pipelines)
    assert found == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_groups_that_would_join_two_stages_only_together_are_kept_apart() -> None:
    found = stages(range(4), groups((0, 2), (2, 1)), [(0, 1)])
    assert not any({0, 1} <= set(stage) for stage in found)


def test_a_pipeline_without_data_parallelism_has_nobody_to_compare() -> None:
    assert stages(range(3), groups((0, 1, 2)), [(0, 1), (1, 2)]) == ((0,), (1,), (2,))


@given(dp=st.integers(1, 4), tp=st.integers(1, 4), pp=st.integers(2, 4))
def test_every_layout_of_tensor_data_and_pipeline_parallelism_gives_its_pipeline_stages(
    dp: int, tp: int, pp: int
) -> None:
    def rank(p: int, d: int, t: int) -> int:
        return (p * dp + d) * tp + t

    made = [tuple(range(dp * tp * pp))]
    made += [tuple(rank(p, d, t) for t in range(tp)) for p in range(pp) for d in range(dp)]
    made += [tuple(rank(p, d, t) for d in range(dp)) for p in range(pp) for t in range(tp)]
    made += [tuple(rank(p, d, t) for p in range(pp)) for d in range(dp) for t in range(tp)]
    made += [(rank(0, d, t), rank(pp - 1, d, t)) for d in range(dp) for t in range(tp)]
    pairs = [(rank(p, d, t), rank(p + 1, d, t)) for p in range(pp - 1) for d in range(dp) for t in range(tp)]
    expected = tuple(tuple(rank(p, d, t) for d in range(dp) for t in range(tp)) for p in range(pp))
    assert stages(range(dp * tp * pp), groups(*made), pairs) == expected


def test_the_layout_is_read_from_the_rings() -> None:
    def ring(rank: int, *ops: Op) -> RankTrace:
        made = (Group(name=WORLD, ranks=(0, 1)), Group(name="1", ranks=(0, 1)))
        return RankTrace(rank=rank, world_size=2, pid=1, steps=0, last_at_s=0.0, blocked_s=0.0, ops=ops, groups=made)

    send = Op(group="1", op="send", seq=1, state="done", at_s=1.0, peer=1)
    rooted = Op(group="1", op="broadcast", seq=1, state="done", at_s=1.0, peer=0)
    found, pairs = layout_of(
        [ring(0, send), ring(1, rooted, Op(group="1", op="recv", seq=1, state="issued", at_s=1.0))]
    )
    assert ([group.name for group in found], pairs) == (["1"], {(0, 1)})
