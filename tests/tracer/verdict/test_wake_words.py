"""What a verdict says of the culprit's wait: what it waits for, and what it raised before it could not end."""

from __future__ import annotations

import msgspec
import pytest
from seen_ranks import STANDARD, TORCH, process, stack

from robust_run.health.types import Finding
from robust_run.tracer.types import RankSight, Scene, TraceVerdict
from robust_run.tracer.verdict import RankPatience, describe_waits, look, look_at_leftovers, seen
from tests.tracer.verdict.test_pairs import ELSEWHERE, rank, waits
from tests.tracer.wake import readings
from tests.tracer.wake.readings import AT_S, reading, thread, time_at

LEAVES = stack(f"{STANDARD}/threading.py:1590 _shutdown")
CHILD = reading(
    readings.process(thread("wait4", 200), children=(200,)),
    readings.process(thread("nanosleep", 64, tid=200, at0=time_at(9)), pid=200, parent=100, command="curl"),
)
THREADS = reading(
    readings.process(thread("futex", 64, 0x80), thread("clock_nanosleep", 1, 1, 64, tid=101, at2=time_at(AT_S + 30)))
)


def scene(culprit: RankSight) -> Scene:
    return Scene(at_s=20.0, attempt=0, world_size=3, ranks=(culprit, *(rank(n, waits("all_reduce")) for n in (1, 2))))


def verdict_on(culprit: RankSight) -> TraceVerdict:
    found = look(scene(culprit), RankPatience(after_s=5.0)).verdict
    assert found is not None
    return found


def with_wake(sight: RankSight, **more: object) -> RankSight:
    return msgspec.structs.replace(sight, **more)


def test_the_sentence_ends_with_what_the_culprit_waits_for() -> None:
    found = verdict_on(with_wake(rank(0, at=ELSEWHERE), wake=CHILD))
    assert found.sentence.endswith(
        "it is in data.py:88 get, waits for its child 200 (curl), which sleeps for at most 9.0 s more"
    )
    assert not found.proven
    assert found.evidence[0] == (
        "rank 0 has been waited for in all_reduce #1 of the world for 10.0 s: "
        "ranks 1-2 ← rank 0 (data.py:88 get) ← pid 200 curl sleeps for at most 9.0 s more"
    )


def test_what_could_not_be_read_is_said() -> None:
    hidden = msgspec.structs.replace(
        reading(readings.process(thread())), unread=("pid 100: its system calls are not ours to read",)
    )
    line = describe_waits(scene(with_wake(rank(0, at=ELSEWHERE), wake=hidden)))[0]
    assert line.endswith("rank 0 (data.py:88 get) waits (pid 100: its system calls are not ours to read)")


def test_without_a_reading_it_is_said_where_it_is() -> None:
    assert verdict_on(rank(0, at=ELSEWHERE)).sentence.endswith("it is in data.py:88 get")


def test_why_and_the_page_have_the_chain_too() -> None:
    seen_so = scene(with_wake(rank(0, at=ELSEWHERE), wake=CHILD))
    (line,) = seen(seen_so).lines
    assert describe_waits(seen_so)[0] == line
    assert line.endswith("ranks 1-2 ← rank 0 (data.py:88 get) ← pid 200 curl sleeps for at most 9.0 s more")
    ((number, chain),) = seen(seen_so).chains
    assert number == 0 and [link.pid for link in chain.links] == [100, 200]


def test_a_program_that_raised_and_cannot_end_is_told_with_what_it_raised() -> None:
    raised = Finding(kind="exception", line="ValueError: bad batch", exception="ValueError")
    found = verdict_on(with_wake(rank(0, at=LEAVES), wake=THREADS, finding=raised))
    assert found.sentence.endswith(
        "its program raised ValueError: bad batch, and a thread that is no daemon keeps the process: "
        "it waits for a lock while another of its threads sleeps for 30 s more"
    )


def test_a_program_that_is_over_and_cannot_end_is_told_so() -> None:
    found = verdict_on(rank(0, at=LEAVES))
    assert found.sentence.endswith("its program has come to its end, and a thread that is no daemon keeps the process")


def test_a_rank_that_is_left_behind_is_told_with_what_it_waits_for() -> None:
    left = with_wake(rank(0, at=ELSEWHERE), wake=CHILD)
    ended = [msgspec.structs.replace(rank(n), exit_code=0, ended_at_s=10.0, processes=()) for n in (1, 2)]
    found = look_at_leftovers(Scene(at_s=20.0, attempt=0, world_size=3, ranks=(left, *ended)), 5.0).verdict
    assert found is not None
    assert found.sentence.endswith("waits for its child 200 (curl), which sleeps for at most 9.0 s more")


FETCHES = stack(f"{TORCH}/utils/data/dataloader.py:1251 _try_get_data", "/app/train.py:40 <module>")
IN_THE_DATASET = stack("/app/dl.py:11 __getitem__", f"{TORCH}/utils/data/_utils/worker.py:349 _worker_loop")


@pytest.mark.parametrize(("state", "how"), [("S", ""), ("T", "stopped ")])
def test_a_stuck_loader_worker_is_in_the_line_that_people_read(state: str, how: str) -> None:
    fetching = rank(0, at=FETCHES)
    worker = process(IN_THE_DATASET, pid=13524, is_rank=False, parent=100, state=state)
    found = verdict_on(with_wake(fetching, wake=CHILD, processes=(*fetching.processes, worker)))
    assert found.sentence.endswith(f"; its DataLoader worker 13524 is {how}in dl.py:11 __getitem__")


def test_of_a_lock_without_an_owner_it_is_said_which_threads_run_python() -> None:
    many = tuple(thread("futex", 64, 0x80, tid=100 + number) for number in range(1, 4))
    locked = reading(readings.process(thread("futex", 64, 0x189), *many))
    mine = stack(f"{STANDARD}/queue.py:171 get", "/app/side.py:9 run", main=False)
    timer = stack(f"{STANDARD}/threading.py:331 wait", main=False)
    for beside, words in (
        ((), "waits for one of its 3 other threads, none of which runs Python"),
        ((mine,), "waits for one of its 3 other threads, of which one runs Python: side.py:9 run"),
        ((mine, timer), "of which 2 run Python: side.py:9 run, threading.py:331 wait"),
        ((mine, timer, mine), "of which 3 run Python: side.py:9 run, threading.py:331 wait and 1 more"),
    ):
        assert verdict_on(with_wake(rank(0, at=ELSEWHERE, beside=beside), wake=locked)).sentence.endswith(words)
