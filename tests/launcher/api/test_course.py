"""The course of a job from its journal: what counts as training, what is counted, and journals of any shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.operator.views.course import MOST_ATTEMPTS, Course
from robust_run.launcher.operator.views.course_reader import CourseReader

START = 1_000_000.0


def line(when_s: float, kind: str, term: int = 1, action: bool = False, **fields: Any) -> bytes:
    """A line of a journal, `when_s` seconds after the job's start; the monotonic clock began 900 000 s before."""
    head = {"at": START + when_s, "mono": 100_000.0 + when_s, "term": term}
    return json.dumps(
        {**head, "action" if action else "event": {"type": kind, **fields}}, separators=(",", ":")
    ).encode()


def story(*lines: bytes) -> Course:
    course = Course()
    for each in lines:
        course.take(each)
    return course


def begins(number: int, at_s: float, nodes: int = 1) -> bytes:
    return line(at_s, "start_attempt", action=True, attempt=number, world_size=8 * nodes, nodes=nodes)


def steps(number: int, at_s: float) -> bytes:
    return line(at_s + 1.0, "first_step", attempt=number, node="n", at_s=100_000.0 + at_s)


def fails(number: int, onset_s: float, when_s: float, done: str = "relaunch", **verdict: Any) -> bytes:
    facts = {"attempt": number, "onset_at_s": 100_000.0 + onset_s, "detected_at_s": 100_000.0 + when_s}
    about = {"kind": "crash", "sentence": "it died", **verdict}
    return line(when_s, "record_incident", 1, True, **facts, action_=done, verdict=about).replace(b"action_", b"action")


HEALED = (
    line(0, "job_started"),
    begins(0, 0.0),
    steps(0, 10.0),
    fails(0, 100.0, 105.0),
    line(105, "end_attempt", action=True, attempt=0),
    line(106, "attempt_ended", attempt=0, node="n", progress={"steps": 90}),
    begins(1, 107.0),
    steps(1, 110.0),
)


def test_training_is_from_the_first_step_to_the_onset_of_the_failure() -> None:
    course = story(*HEALED)
    assert course.effective_s(START + 200) == pytest.approx(90 + 90)
    assert course.ettr(START + 200) == pytest.approx(180 / 200)
    assert [each.why for each in course.attempts] == ["it died", ""]
    assert course.steps() == 90


def test_what_was_trained_after_the_checkpoint_of_a_later_attempt_is_no_training() -> None:
    again = line(108, "attempt_started", attempt=1, node="n", pids=[1], port=1, resumes_s=START + 70.0)
    course = story(*HEALED[:-1], again, HEALED[-1])
    assert course.effective_s(START + 200) == pytest.approx(60 + 90)
    assert course.ran_s(START + 200) == pytest.approx(95 + 90), "until the order to end: counters never fall"


def test_what_was_trained_before_a_job_began_from_the_beginning_again_is_no_training() -> None:
    order = HEALED[6].replace(b'"nodes":1', b'"nodes":1,"resume":{"is_beginning":true}')
    assert b"is_beginning" in order
    course = story(*HEALED[:6], order, *HEALED[7:])
    assert course.effective_s(START + 200) == pytest.approx(90)
    unknown = story(*HEALED[:6], order.replace(b"true", b"false"), *HEALED[7:])
    assert unknown.effective_s(START + 200) == pytest.approx(90 + 90), (
        "the program may have gone on from a file of its own"
    )


def test_what_ran_never_falls_when_a_failure_is_found_late() -> None:
    course, ran = Course(), 0.0
    for each in HEALED:
        course.take(each)
        assert course.ran_s(course.last_s) >= ran
        ran = course.ran_s(course.last_s)


def test_the_last_hour_forgets_what_was_before() -> None:
    course = story(*HEALED)
    assert course.ettr_hour(START + 110 + 7200) == pytest.approx(1.0)
    assert course.ettr(START + 110 + 7200) == pytest.approx((90 + 7200) / (110 + 7200))
    assert course.ettr_hour(START + 200) == course.ettr(START + 200), "of a young job they are the same"


def test_a_job_that_is_over_or_dead_does_not_go_on_training() -> None:
    over = story(*HEALED, line(300, "finish", action=True, outcome="done", exit_code=0))
    assert over.until_s(START + 9999, alive=True) == START + 300
    assert story(*HEALED).until_s(START + 9999, alive=False) == START + 111
    assert story(*HEALED, line(150, "node_joined")).until_s(START + 9999, alive=False) == START + 150, "of any line"


def test_what_was_only_reported_ends_no_training() -> None:
    course = story(*HEALED, fails(1, 120.0, 130.0, "report"))
    assert course.effective_s(START + 200) == pytest.approx(180)


def stands(number: int, onset_s: float, when_s: float) -> bytes:
    """A hang that is only reported, by a version that tells whether ranks stand still."""
    return fails(number, onset_s, when_s, "report", kind="hang").replace(
        b'"attempt":', b'"stands_still":true,"attempt":'
    )


def go_on(number: int, at_s: float, late_s: float = 0.0) -> bytes:
    return line(at_s + late_s, "standstill_over", action=True, attempt=number, at_s=100_000.0 + at_s)


def test_a_hang_that_was_only_reported_costs_its_time_while_it_lasts_and_no_more() -> None:
    course = story(*HEALED, stands(1, 120.0, 130.0))
    assert course.effective_s(START + 170) == pytest.approx(90 + 10)
    assert course.attempts[-1].stands_since_s == START + 120
    course.take(go_on(1, 160.0))
    assert course.effective_s(START + 200) == pytest.approx(90 + 10 + 40)
    assert course.attempts[-1].stands_since_s is None
    course.take(stands(1, 180.0, 185.0))  # it hangs again
    assert course.effective_s(START + 200) == pytest.approx(90 + 10 + 20)
    assert [each.incident for each in course.attempts[-1].standstills] == [2, 3]
    assert course.ran_s(START + 200) == pytest.approx(95 + 90), "counters never fall"


def test_what_was_in_vain_does_not_fall_when_ranks_go_on_and_that_is_heard_a_moment_later() -> None:
    course = story(*HEALED, stands(1, 120.0, 130.0))
    before_s = course.effective_s(START + 161)
    course.take(go_on(1, 160.0, late_s=1.0))
    assert course.effective_s(START + 161) == before_s


def test_ranks_that_went_on_while_no_controller_was_there_trained_since_then() -> None:
    course = story(*HEALED, stands(1, 120.0, 130.0), go_on(1, 160.0, late_s=300.0))
    assert course.effective_s(START + 460) == pytest.approx(90 + 10 + 300)


def test_what_is_reported_of_a_standstill_that_goes_on_counts_once() -> None:
    course = story(*HEALED, stands(1, 120.0, 130.0), stands(1, 125.0, 140.0), go_on(1, 150.0))
    assert course.effective_s(START + 200) == pytest.approx(90 + 10 + 50)


def test_a_standstill_that_the_attempt_is_ended_for_counts_once() -> None:
    course = story(*HEALED, stands(1, 120.0, 130.0), fails(1, 120.0, 150.0))
    assert course.effective_s(START + 200) == pytest.approx(90 + 10)


def test_ranks_of_an_attempt_that_is_over_stand_still_no_more() -> None:
    course = story(*HEALED, stands(1, 120.0, 130.0), line(150, "end_attempt", action=True, attempt=1))
    assert course.attempts[-1].stands_since_s is None


def test_where_no_step_was_counted_nobody_knows() -> None:
    course = story(line(0, "job_started"), begins(0, 0.0))
    assert course.ettr(START + 100) is None
    assert course.ettr_hour(START + 100) is None


def test_restarts_are_counted_by_their_slowest_worker_once_all_nodes_have_said() -> None:
    def said(node: str, *how: str) -> bytes:
        return line(108, "attempt_started", attempt=1, node=node, how=how, pids=[1], port=1)

    course = story(*HEALED[:6], begins(1, 107.0, nodes=2), said("a", "promote", "promote"))
    assert sum(course.restarts.values()) == 0
    course.take(said("a", "promote", "promote"))  # an agent that came back says it again
    course.take(said("b", "promote", "spawn"))
    assert course.restarts == {"spawn": 1}
    assert course.worker_starts == {"promote": 3, "spawn": 1}


def test_evictions_are_told_apart_by_who_did_it() -> None:
    course = story(
        line(0, "node_evicted", name="a", by="ann", reason=""),  # before the job starts: from the list
        line(0, "job_started"),
        begins(0, 0.0),
        line(1, "node_evicted", name="b", by="ann", reason=""),
        fails(0, 2.0, 3.0, "evict", nodes=["c", "d"]),
    )
    assert course.evictions == {"list": 1, "operator": 1, "rule": 2}


def test_lines_of_a_controller_that_was_replaced_do_not_count() -> None:
    course = story(*HEALED, line(150, "controller_resumed", term=2), fails(1, 120.0, 151.0))
    assert course.effective_s(START + 200) == pytest.approx(180)


def test_a_month_of_restarts_keeps_the_sums_and_forgets_the_rest() -> None:
    course = story(line(0, "job_started"))
    for number in range(3 * MOST_ATTEMPTS):
        at_s = 100.0 * number
        for each in (begins(number, at_s), steps(number, at_s + 10), fails(number, at_s + 60, at_s + 61)):
            course.take(each)
        course.take(line(at_s + 62, "attempt_ended", attempt=number, node="n", progress={"steps": 5}))
    assert len(course.attempts) == MOST_ATTEMPTS
    assert course.effective_s(START + 1e6) == pytest.approx(50 * 3 * MOST_ATTEMPTS)
    assert course.steps() == 5 * 3 * MOST_ATTEMPTS


@given(st.binary(max_size=400))
def test_no_line_is_too_strange(data: bytes) -> None:
    course = story(line(0, "job_started"))
    course.take(data)
    course.take(b'{"at":1,"event":{"type":"first_step",' + data)
    assert course.counted["job_started"] == 1


def test_a_journal_is_read_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"schema":1}\n' + b"\n".join(HEALED[:4]) + b"\n" + HEALED[4][:20])
    reader = CourseReader(str(path))
    assert len(reader.read_all().attempts) == 1
    with path.open("ab") as file:
        file.write(HEALED[4][20:] + b"\n" + b"\n".join(HEALED[5:]) + b"\n")
    course = reader.read_all()
    assert course.effective_s(START + 200) == pytest.approx(180)
    assert course.counted["end_attempt"] == 1


def test_a_journal_that_shrank_is_another(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\n".join(HEALED) + b"\n")
    reader = CourseReader(str(path))
    reader.read_all()
    path.write_bytes(HEALED[0] + b"\n")
    assert len(reader.read_all().attempts) == 0


def test_a_line_without_end_is_left_out(tmp_path: Path) -> None:
    from robust_run.launcher.operator.views.course_reader import PIECE_BYTES

    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"x" * (PIECE_BYTES + 100) + b"\n" + b"\n".join(HEALED) + b"\n")
    assert len(CourseReader(str(path)).read_all().attempts) == 2
