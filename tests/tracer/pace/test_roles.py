"""Which nodes are peers: of the same pipeline stages, with the same experts."""

from __future__ import annotations

import msgspec

from robust_run.tracer.pace.roles import roles_of
from robust_run.tracer.types import Group, Op, RankTrace


def op(group: str, kind: str, peer: int = -1) -> Op:
    return Op(group=group, op=kind, seq=1, state="completed", at_s=0.0, peer=peer)


def trace(rank: int, groups: tuple[Group, ...], ops: tuple[Op, ...]) -> RankTrace:
    return RankTrace(rank=rank, world_size=0, pid=1, steps=9, last_at_s=0.0, blocked_s=0.0, ops=ops, groups=groups)


def pipeline(depth: int, replicas: int) -> list[RankTrace]:
    """One rank a node; rank = stage * replicas + replica."""
    made = []
    for at in range(depth):
        dp = Group(name=f"dp{at}", ranks=tuple(at * replicas + each for each in range(replicas)))
        for replica in range(replicas):
            rank = at * replicas + replica
            to = rank + replicas if at + 1 < depth else rank - replicas
            made.append(trace(rank, (dp,), (op("world", "send", to), op(dp.name, "all_reduce"))))
    return made


def nodes(count: int) -> dict[str, tuple[int, ...]]:
    return {f"n{number}": (number,) for number in range(count)}


def test_nodes_of_one_pipeline_stage_are_peers_and_those_of_another_are_not() -> None:
    found = roles_of(nodes(6), pipeline(2, 3))
    assert found == {**dict.fromkeys(("n0", "n1", "n2"), "stage 0"), **dict.fromkeys(("n3", "n4", "n5"), "stage 1")}


def test_a_node_with_ranks_of_two_stages_is_another_kind_of_node() -> None:
    placed = {"a": (0, 3), "b": (1, 4), "c": (2, 5)}
    assert set(roles_of(placed, pipeline(2, 3)).values()) == {"stage 0+1"}


def test_without_a_pipeline_all_nodes_are_of_one_kind() -> None:
    world = Group(name="dp", ranks=(0, 1, 2))
    traces = [trace(rank, (world,), (op("dp", "all_reduce"),)) for rank in range(3)]
    assert set(roles_of(nodes(3), traces).values()) == {"all"}


def expert_groups(count: int) -> list[RankTrace]:
    """Groups of two ranks that do all-to-all: even ranks hold some experts, odd ones others."""
    made = []
    for rank in range(2 * count):
        group = Group(name=f"ep{rank // 2}", ranks=(rank // 2 * 2, rank // 2 * 2 + 1))
        made.append(trace(rank, (group,), (op(group.name, "all_to_all"),)))
    return made


def test_nodes_that_hold_other_experts_are_not_compared_where_there_are_enough_of_each() -> None:
    found = roles_of(nodes(6), expert_groups(3))
    assert len(set(found.values())) == 2
    assert found["n0"] == found["n2"] == found["n4"] != found["n1"]


def test_with_too_few_nodes_of_the_same_experts_those_of_the_same_stage_are_peers() -> None:
    assert set(roles_of(nodes(4), expert_groups(2)).values()) == {"all"}


def test_few_calls_without_a_pipeline_prove_none() -> None:
    """Of 100,000 ranks few calls of each are told, and the newest may all be those of the optimizer."""
    half = [msgspec.structs.replace(each, ops=each.ops[each.rank % 2 :]) for each in pipeline(2, 3)]
    assert roles_of(nodes(6), half) == {}
    world = Group(name="dp", ranks=(0, 1, 2))
    assert roles_of(nodes(3), [trace(rank, (world,), (op("dp", "all_reduce"),)) for rank in range(3)], told=1) == {}


def test_where_calls_of_some_ranks_are_not_seen_nothing_is_known() -> None:
    assert roles_of(nodes(6), pipeline(2, 3)[:-1]) == {}
    assert roles_of({}, []) == {}
