"""What is kept of a start: phases that add up, who came last, who was slow; and that it stays small."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_starts import IMPORTS, INIT, TORCH_LOAD, UNIX_S, attempt_of, node_start, slow_node, startup_of

from robust_run.report.startup.phases import seconds_of
from robust_run.report.startup.summarise import coarse, summarise, with_attempt
from robust_run.report.startup.types import (
    ALL_RANKS,
    MOST_ROW_SPANS,
    NodeStart,
    RankMarks,
    RankRow,
    SchedulerQueue,
    StartSpan,
)
from robust_run.tracer.files.marks import StartMark


def phase(found, name: str):
    return next(each for each in found.phases if each.phase == name)


def is_whole(row: RankRow) -> bool:
    """Whether a row's spans follow each other."""
    return all(before.ended_s == after.began_s for before, after in zip(row.spans, row.spans[1:], strict=False))


def test_the_phases_of_a_rank_add_up_to_the_time_of_its_first_step() -> None:
    found = attempt_of(node_start(0, image_s=0.6, many=False))
    assert found.total_s == 10.0
    assert (found.complete, found.seen_ranks, found.stepped_ranks, found.began_unix_s) == (True, 2, 2, UNIX_S + 100.0)
    for row in found.rows:
        assert is_whole(row)
        assert sum(seconds_of(row).values()) == pytest.approx(10.0)
        assert row.spans[0].began_s == 0.0
    spent = seconds_of(found.rows[0])
    assert spent["image"] == pytest.approx(0.6, abs=0.002)
    assert spent["imports"] == pytest.approx(1.0, abs=0.002)
    assert spent["load"] == pytest.approx(2.0, abs=0.002)
    assert found.rows[0].loaders == ("torch.load",)


def test_a_slow_node_is_named_and_who_came_last_is_kept() -> None:
    found = slow_node()
    load = phase(found, "load")
    assert (load.stragglers[0].node, load.stragglers[0].rank) == ("node-7", -1)
    assert load.straggler_count == 1
    assert found.critical is not None
    assert found.critical.node == "node-7"
    assert [row.node for row in found.node_rows] == [f"node-{number}" for number in range(8)]


def test_one_slow_rank_of_a_node_is_named_by_its_rank() -> None:
    found = attempt_of(*(node_start(n, 4, loads_of={6: 5.0}, first_step_s=115.0) for n in range(4)))
    (slow,) = phase(found, "load").stragglers
    assert (slow.node, slow.rank, round(slow.seconds, 1)) == ("node-1", 6, 5.0)


def test_who_waits_for_others_is_no_straggler() -> None:
    found = attempt_of(*(node_start(n, imports_s=0.1 if n else 3.0) for n in range(4)))
    assert phase(found, "init").stragglers == ()
    assert phase(found, "first_step").stragglers == ()
    assert [each.node for each in phase(found, "imports").stragglers] == ["node-0"]


def test_who_waits_in_its_own_code_is_not_taken_for_the_one_that_is_waited_for() -> None:
    """Both ranks import something late, in their first step, after they have waited for each other."""

    def rank(number: int, load_s: float) -> RankMarks:
        spans = (StartMark(TORCH_LOAD, 101.0, 101.0 + load_s), StartMark(IMPORTS, 106.0, 109.0 - 0.001 * number))
        return RankMarks(number, "spawn", 100.5, spans, 0, 0.0, 109.1)

    found = attempt_of(NodeStart(attempt=0, node="a", seen_s=110.0, began_s=100.0, ranks=(rank(0, 0.1), rank(1, 5.0))))
    assert found.critical is not None
    assert found.critical.rank == 1


def test_differences_that_nobody_would_notice_name_nobody() -> None:
    found = attempt_of(*(node_start(n, imports_s=0.1 + 0.04 * n) for n in range(4)))
    assert phase(found, "imports").stragglers == ()


def test_a_start_that_goes_on_shows_what_goes_on() -> None:
    began_s = 200.0
    rank = RankMarks(0, "spawn", began_s, (StartMark(IMPORTS, began_s, began_s + 1.0),), TORCH_LOAD, began_s + 2.0)
    start = NodeStart(attempt=1, node="a", seen_s=began_s + 30.0, began_s=began_s, ranks=(rank,))
    found = attempt_of(start, is_first=False)
    assert (found.stepped_ranks, found.complete, found.total_s) == (0, False, 30.0)
    assert found.critical is not None
    assert found.critical.spans[-1] == StartSpan("load", 2.0, 30.0)


def test_a_restart_begins_when_its_workers_are_started() -> None:
    found = attempt_of(node_start(0, began_s=103.0, attempt=1, how="promote"), is_first=False)
    assert found.total_s == 7.0
    assert found.how == (("promote", 2),)
    assert {each.phase for each in found.phases}.isdisjoint({"agent", "meet", "image", "queue"})


def test_a_standby_that_takes_a_place_after_a_change_of_the_controller_was_not_started_for_it() -> None:
    """The new controller has heard of no attempt before this one."""
    stayed = node_start(0, began_s=103.0, attempt=1, how="promote")
    joined = msgspec.structs.replace(node_start(1, began_s=103.0, attempt=1, how="promote"), launched_s=64.0)
    assert attempt_of(stayed, joined).total_s == 7.0
    again = msgspec.structs.replace(stayed, launched_s=100.0)  # the whole job was started again
    assert attempt_of(again).total_s == 10.0


def test_a_node_that_is_started_late_begins_late() -> None:
    found = attempt_of(node_start(0, launched_s=100.0, began_s=105.2), node_start(1, launched_s=105.0, began_s=105.2))
    late = next(row for row in found.node_rows if row.node == "node-1")
    early = next(row for row in found.node_rows if row.node == "node-0")
    assert late.spans[0].began_s == 5.0
    assert seconds_of(early)["meet"] == pytest.approx(5.0, abs=0.01)


def test_the_queue_is_before_the_start_and_belongs_to_the_first_attempt_alone() -> None:
    queue = SchedulerQueue(eligible_unix_s=UNIX_S + 40.0, started_unix_s=UNIX_S + 90.0, is_batch=True)
    first = attempt_of(node_start(0), queue=queue)
    assert first.critical is not None
    assert first.critical.spans[:2] == (StartSpan("queue", -60.0, -10.0), StartSpan("script", -10.0, 0.0))
    assert first.total_s == 10.0
    again = attempt_of(node_start(0, attempt=1), is_first=False, queue=queue)
    assert "queue" not in {each.phase for each in again.phases}


def test_a_rank_that_noted_nothing_is_there_all_the_same() -> None:
    start = NodeStart(attempt=0, seen_s=9.0, began_s=5.0, ranks=(RankMarks(0, "spawn"),))
    found = attempt_of(start)
    assert found.critical is not None
    assert found.critical.spans == (StartSpan("spawn", 0.0, 4.0),)


def test_nothing_comes_of_nothing() -> None:
    assert summarise([], world_size=0, nodes=0, unix_offset_s=0.0) is None


def test_many_spans_become_few_that_cover_the_same_time() -> None:
    spans = [StartSpan("imports" if n % 2 else "program", n * 0.1, (n + 1) * 0.1) for n in range(200)]
    few = coarse(spans, MOST_ROW_SPANS)
    assert len(few) <= MOST_ROW_SPANS
    assert (few[0].began_s, few[-1].ended_s) == (spans[0].began_s, spans[-1].ended_s)


@given(
    st.lists(
        st.tuples(st.sampled_from([IMPORTS, INIT, TORCH_LOAD]), st.floats(0, 50), st.floats(0, 5)),
        max_size=MOST_ROW_SPANS,
    ),
    st.one_of(st.none(), st.floats(0, 100)),
)
def test_whatever_a_worker_wrote_its_row_is_whole(marks: list[tuple[int, float, float]], step: float | None) -> None:
    spans = tuple(
        StartMark(kind, 100.0 + begin, 100.0 + begin + length)
        for kind, begin, length in sorted(marks, key=lambda m: m[1])
    )
    first_step_s = None if step is None else 100.0 + step
    rank = RankMarks(0, "spawn", 100.0, spans, 0, 0.0, first_step_s)
    start = NodeStart(attempt=0, node="a", seen_s=200.0, began_s=99.0, launched_s=98.0, ranks=(rank,))
    (row,) = attempt_of(start).rows
    assert is_whole(row)
    assert row.spans[-1].ended_s == pytest.approx((first_step_s or 200.0) - 98.0, abs=0.002)
    assert len(row.spans) <= MOST_ROW_SPANS


def test_ten_thousand_ranks_and_a_hundred_attempts_stay_below_two_megabytes() -> None:
    starts = [node_start(n, 8, load_s=2.0 + 0.001 * n, first_step_s=120.0) for n in range(1250)]
    big = attempt_of(*starts)
    assert big.seen_ranks == 10_000
    assert 0 < len(big.rows) <= ALL_RANKS
    startup = startup_of(big)
    for number in range(1, 100):
        startup = with_attempt(startup, msgspec.structs.replace(big, attempt=number))
    assert len(startup.attempts) == 100
    assert startup.attempts[0].rows == startup.attempts[-1].rows == big.rows, "the first and the newest are whole"
    assert startup.attempts[50].rows == ()
    assert len(msgspec.json.encode(startup)) < 2 << 20


def test_an_attempt_that_is_better_known_replaces_what_was_known() -> None:
    early, late = attempt_of(node_start(0, first_step_s=None)), attempt_of(node_start(0))
    startup = with_attempt(with_attempt(startup_of(), early), late)
    assert startup.attempts == (late,)
