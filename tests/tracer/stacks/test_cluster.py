"""Ranks that do the same are clustered, minorities are suspects, and the group that covers them is found."""

from seen_ranks import GATHERS, GETS, REDUCES, SPINS, STANDARD, TORCH, process, sight, stack

from robust_run.tracer.stacks.cluster import clusters, covering_group, suspects
from robust_run.tracer.types import BACKWARD, Group, Op, RankTrace

WORKER = f"{TORCH}/utils/data/_utils/worker.py:320 _worker_loop"
FETCHES = stack("/app/data.py:5 __getitem__", WORKER, "/app/train.py:40 <module>")
AWAITS_WORK = stack(f"{STANDARD}/multiprocessing/queues.py:113 get", WORKER, "/app/train.py:40 <module>")


def test_equal_functions_are_one_cluster_whatever_the_line():
    other_line = stack(*[f"{frame.file}:{frame.line + 2} {frame.function}" for frame in REDUCES.frames])
    (one,) = clusters(
        [sight(process(REDUCES), rank=0), sight(process(other_line), rank=1), sight(process(REDUCES), rank=2)]
    )
    assert one.ranks == (0, 1, 2)
    assert one.waiting
    assert one.role == "rank"
    assert one.frames[1] == "/app/train.py:52 step"


def test_the_newest_stack_counts():
    (one,) = clusters([sight(process(REDUCES, SPINS))])
    assert not one.waiting


def test_one_rank_that_does_not_wait_is_the_suspect():
    found = clusters([sight(process(GETS if rank == 5 else REDUCES), rank=rank) for rank in range(8)])
    assert [one.ranks for one in found] == [(0, 1, 2, 3, 4, 6, 7), (5,)]
    assert [one.ranks for one in suspects(found, 8)] == [(5,)]


def test_more_than_a_quarter_is_no_minority():
    found = clusters([sight(process(GETS if rank < 3 else REDUCES), rank=rank) for rank in range(8)])
    assert suspects(found, 8) == ()
    assert [one.ranks for one in suspects(found, 12)] == [(0, 1, 2)]


def test_if_all_wait_the_smallest_cluster_is_suspect():
    found = clusters([sight(process(GATHERS if rank == 1 else REDUCES), rank=rank) for rank in range(4)])
    assert [one.ranks for one in suspects(found, 4)] == [(1,)]


def test_if_all_do_the_same_nobody_is_suspect():
    assert suspects(clusters([sight(process(REDUCES), rank=rank) for rank in range(4)]), 4) == ()
    assert suspects(clusters([sight(process(GETS), rank=rank) for rank in range(4)]), 4) == ()
    assert suspects((), 4) == ()


def test_a_rank_waits_if_its_records_say_so():
    def traced(op: str, state: str):
        newest = Op(group="0", op=op, seq=1, state=state, at_s=1.0)
        trace = RankTrace(rank=0, world_size=4, pid=1, steps=0, last_at_s=1.0, blocked_s=0.0, ops=(newest,), groups=())
        return clusters([sight(process(SPINS), trace=trace)])[0].waiting

    assert traced("all_reduce", "waiting")
    assert not traced("all_reduce", "done")
    assert not traced("all_reduce", "issued")
    assert not traced(BACKWARD, "entered")


def test_a_backward_pass_waits_if_it_sleeps_while_a_collective_of_torch_goes_on():
    backward = stack(f"{TORCH}/autograd/graph.py:979 _engine_run_backward", "/app/train.py:52 step")

    def waits(cpu: float, state: str) -> bool:
        op = Op(group="0", op=BACKWARD, seq=1, state="waiting", at_s=1.0)
        trace = RankTrace(rank=0, world_size=4, pid=1, steps=0, last_at_s=1.0, blocked_s=0.0, ops=(op,), groups=())
        reduces = Op(group="0", op="all_reduce", seq=9, state=state, at_s=1.0)
        return clusters([sight(process(backward, cpu=cpu), trace=trace, recorded=(reduces,))])[0].waiting

    assert waits(0.0, "waiting")
    assert not waits(0.9, "waiting")
    assert not waits(0.0, "done")


def test_children_are_clustered_apart_by_their_role():
    workers = [process(FETCHES if rank == 2 else AWAITS_WORK, pid=11, is_rank=False) for rank in range(4)]
    found = clusters([sight(process(GETS), worker, rank=rank) for rank, worker in enumerate(workers)])
    assert [(one.role, one.ranks, one.waiting) for one in found] == [
        ("rank", (0, 1, 2, 3), False),
        ("DataLoader worker", (0, 1, 3), True),
        ("DataLoader worker", (2,), False),
    ]
    assert [one.ranks for one in suspects(found, 4)] == [(2,)]


def test_a_child_that_sleeps_in_what_the_user_called_does_not_wait_for_work():
    reads = stack(f"{STANDARD}/socket.py:7 readinto", "/app/data.py:5 __getitem__", WORKER, "/app/train.py:40 <module>")
    (_, child) = clusters([sight(process(GETS), process(reads, pid=11, is_rank=False))])
    assert not child.waiting


def test_processes_without_a_stack_are_in_no_cluster():
    assert clusters([sight(process()), sight()]) == ()


GROUPS = [
    Group(name=name, ranks=ranks)
    for name, ranks in (("w", (0, 1, 2, 3)), ("tp", (0, 1)), ("tp", (2, 3)), ("dp", (1, 3)))
]


def test_the_smallest_group_that_holds_all_suspects_covers_them():
    assert covering_group([3, 1], GROUPS) == GROUPS[3]
    assert covering_group([0, 3], GROUPS) == GROUPS[0]
    assert covering_group([2], GROUPS).ranks == (2, 3)


def test_else_the_group_that_resembles_them_most():
    assert covering_group([0, 1, 9], GROUPS[1:]).ranks == (0, 1)
    assert covering_group([9], GROUPS) is None
    assert covering_group([], GROUPS) is None
