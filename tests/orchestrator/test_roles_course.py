"""The course of a job's queues and waits: a history of bounded size, exact where it counts."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from robust_run.orchestrator.course import files
from robust_run.orchestrator.model.queue_state import QueueState
from robust_run.orchestrator.rules.course_points import (
    MOST_MEMBERS,
    MOST_POINTS,
    Course,
    CoursePoint,
    Fill,
    Waited,
    added,
    fill_of,
    idle_of,
    point_of,
    share_between,
)
from robust_run.orchestrator.rules.queue_core import step
from robust_run.roles.queue_words import Put, Took


def of(*fills: int) -> Course:
    """A course of a queue that has so many items, second for second, and of a role that waited a quarter of the time."""
    course = Course()
    for number, fill in enumerate(fills):
        at_s = 1000.0 + number
        if course.points and at_s - course.points[-1].at_s < course.apart_s:
            continue
        waited = {"rollout": Waited(number / 4, float(number))}
        course = added(course, CoursePoint(at_s=at_s, queues={"samples": Fill(fill, fill)}, roles=waited))
    return course


def test_an_old_job_has_as_many_points_as_a_young_one_and_its_extremes() -> None:
    fills = [5] * 3000
    fills[16], fills[1600] = 0, 99
    course = of(*fills)
    assert MOST_POINTS / 2 <= len(course.points) <= MOST_POINTS
    assert course.apart_s == 16.0
    assert min(point.queues["samples"].low for point in course.points) == 0
    assert max(point.queues["samples"].high for point in course.points) == 99
    assert course.points[-1].at_s == 1000.0 + 2992
    assert idle_of(course.points) == {"rollout": 0.25}, "seconds are added up: none is lost with a point"


def test_a_stretch_without_anybody_has_no_share() -> None:
    assert share_between(Waited(1.0, 4.0), Waited(2.0, 6.0)) == 0.5
    assert share_between(Waited(1.0, 4.0), Waited(1.0, 4.0)) is None
    assert share_between(None, Waited(3.0, 4.0)) == 0.75
    assert share_between(Waited(9.0, 9.0), Waited(1.0, 4.0)) is None, "of another leader, whose file was lost"


def test_a_leader_that_is_started_again_adds_to_what_an_earlier_one_had() -> None:
    before = point_of(10.0, {}, {"rollout/0": (1.0, 2.0), "rollout/1": (2.0, 2.0)}, None)
    after = point_of(20.0, {}, {"rollout/0": (3.0, 6.0)}, before)
    assert after.roles == {"rollout": Waited(6.0, 10.0)}
    assert after.members == {"rollout/0": Waited(4.0, 8.0), "rollout/1": Waited(2.0, 2.0)}


def test_of_many_members_only_roles_are_kept() -> None:
    many = {f"rollout/{index}": (1.0, 2.0) for index in range(MOST_MEMBERS + 1)}
    point = point_of(10.0, {}, many, None)
    assert point.members == {} and point.roles == {"rollout": Waited(49.0, 98.0)}


def test_a_clock_that_is_set_back_forgets_what_is_later_than_now() -> None:
    course = added(of(1, 2, 3), CoursePoint(at_s=1001.0))
    assert [point.at_s for point in course.points] == [1000.0, 1001.0]


def test_a_queue_is_as_full_as_it_is() -> None:
    state = QueueState()
    for number in range(5):
        step(state, Put(key=str(number), generation=0, payload=b"x"), 0.0)
    step(state, Took(consumer="rollout/0:0", count=2), 0.0)
    assert fill_of(state) == Fill(3, 3, 2, 0)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    course = of(*range(300))
    files.write(str(tmp_path), course)
    assert files.read(str(tmp_path)) == course
    assert files.read(str(tmp_path / "none")) == Course()


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.floats() | st.text(max_size=5),
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(st.sampled_from(["schema", "points", "apart_s"]), each, max_size=3)
        ),
    ).map(lambda value: msgspec.json.encode(value))
)
def test_whatever_is_in_the_file_it_is_read(tmp_path_factory, content: bytes) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("run")
    (folder / files.NAME).write_bytes(content)
    assert isinstance(files.read(str(folder)), Course)


def test_numbers_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    good = CoursePoint(at_s=5.0, queues={"q": Fill(1, 2)})
    wrong = CoursePoint(at_s=6.0, queues={"q": Fill(-1, 2)})
    files.write(str(tmp_path), Course(points=(good, wrong), apart_s=-3.0))
    assert files.read(str(tmp_path)) == Course(points=(good,))
