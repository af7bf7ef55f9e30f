"""A worker that is stopped: when that is told, when it is certain that it holds up others, and what is done. What looks alike."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.words import (
    Begun,
    MemberName,
    NodeOffered,
    RankHeldUp,
    RankStopped,
    RestartMember,
    SayLine,
    WorldRuns,
)
from robust_run.orchestrator.rules.core import ASK_AGAIN_S, step
from robust_run.orchestrator.rules.stopped import TOGETHER_S, StoppedBook
from robust_run.orchestrator.rules.stopped_looks import LATEST_S, SIGSTOP, STOPPED_S, Seen, StopWatch

STOPPED = Seen(state="T", stopped_by=SIGSTOP, turns="17", start_ticks=5, parent_state="S")
SIGTSTP = 20


def told(looks: Iterator[tuple[float, Seen | None]]) -> list[float]:
    """Return when it was told."""
    watch = StopWatch()
    return [at_s for at_s, seen in looks if watch.take(seen, at_s) is not None]


def every_second(seen: Seen | None, seconds: int, begin: int = 0) -> Iterator[tuple[float, Seen | None]]:
    return ((float(at_s), seen) for at_s in range(begin, begin + seconds))


# What the kernel says.


def test_a_worker_that_stays_stopped_is_told_after_a_while_and_then_again() -> None:
    assert told(every_second(STOPPED, 16)) == [10.0, 12.0, 14.0]


@pytest.mark.parametrize(
    "alike",
    [
        {"state": "S"},
        {"state": "t"},
        {"stopped_by": SIGTSTP},
        {"stopped_by": 0},
        {"turns": ""},
        {"parent_state": "T"},
        {"parent_state": "t"},
        {"parent_state": ""},
    ],
    ids=[
        "it runs",
        "debugger",
        "ctrl-z",
        "unknown signal",
        "turns not counted",
        "job suspended",
        "launcher debugged",
        "gone",
    ],
)
def test_what_looks_alike_is_not_told(alike: dict[str, str]) -> None:
    assert told(every_second(msgspec.structs.replace(STOPPED, **alike), 60)) == []


def test_a_throttle_that_stops_and_continues_in_turns_is_not_told() -> None:
    assert told((float(at_s), msgspec.structs.replace(STOPPED, turns=str(at_s // 3))) for at_s in range(60)) == []


def test_one_that_went_on_counts_anew() -> None:
    looks = [
        *every_second(STOPPED, 8),
        (8.0, msgspec.structs.replace(STOPPED, state="R")),
        *every_second(STOPPED, 10, 9),
    ]
    assert told(iter(looks)) == []


def test_another_process_of_the_same_number_counts_anew() -> None:
    other = msgspec.structs.replace(STOPPED, start_ticks=6)
    assert told(iter([*every_second(STOPPED, 8), *every_second(other, 9, 8)])) == []


def test_looks_that_a_suspended_machine_parted_say_nothing() -> None:
    """All of the job was stopped, who looks too; when it is let go on, a worker may be the last."""
    assert told(iter([(0.0, STOPPED), (1.0, STOPPED), (3600.0, STOPPED), (3601.0, STOPPED)])) == []
    assert told(iter([(0.0, STOPPED), (LATEST_S + 0.1, STOPPED), (STOPPED_S + 1, STOPPED)])) == []


# Whether it holds up others.


def stopped(role: str = "rollout", index: int = 0, for_s: float = 12.0) -> RankStopped:
    return RankStopped(member=MemberName(role, index), serial=1, rank=0, attempt=0, for_s=for_s)


def book_of(*told_at: tuple[float, RankStopped]) -> StoppedBook:
    book = StoppedBook()
    for at_s, event in told_at:
        book.take(event, at_s)
    return book


ALONE = [(at_s, stopped()) for at_s in (0.0, 2.0, 4.0, 6.0)]


def test_one_alone_that_others_wait_for_holds_them_up() -> None:
    assert book_of(*ALONE).held_up({"rollout/0:0"}, 6.0) == stopped()


def test_one_that_nobody_waits_for_is_left_alone() -> None:
    """An idle role is healthy, and so is one that somebody has put to sleep."""
    assert book_of(*ALONE).held_up({"rollout/1:0", "trainer/0:0"}, 6.0) is None
    assert book_of(*ALONE).held_up(set(), 6.0) is None


def test_of_several_that_are_stopped_none_is_touched() -> None:
    """A scheduler, or a person, stops them all: they are found one after the other."""
    assert book_of(*ALONE, (6.0, stopped("trainer"))).held_up({"rollout/0:0"}, 6.0) is None


def test_others_that_were_stopped_in_the_same_moment_are_waited_for() -> None:
    assert book_of(ALONE[0]).held_up({"rollout/0:0"}, TOGETHER_S - 1.0) is None


def test_what_is_not_told_any_more_holds_no_more() -> None:
    assert book_of(*ALONE).held_up({"rollout/0:0"}, 60.0) is None
    again = book_of(*ALONE, (60.0, stopped()))
    assert again.held_up({"rollout/0:0"}, 60.0) is None, "it was stopped anew"


# What is done.

HELD_UP = RankHeldUp(member=MemberName("rollout", 0), serial=1, rank=0, attempt=0, for_s=14.0)


def running(**role: object) -> tuple[RolesSpec, JobState]:
    spec = RolesSpec(name="job", roles=(RoleSpec(name="rollout", command=("r.py",), restart="alone", **role),))  # type: ignore[arg-type]
    state = JobState()
    for event in (NodeOffered(node="n", slots=9), Begun(), WorldRuns(member=HELD_UP.member, serial=1)):
        step(spec, state, event, 0.0)
    return spec, state


def test_its_launcher_is_asked_to_start_its_worker_again_and_people_are_told() -> None:
    spec, state = running()
    line, order = step(spec, state, HELD_UP, 20.0)
    assert isinstance(line, SayLine)
    assert isinstance(order, RestartMember)
    assert line.text == (
        "rollout/0: it has been stopped (SIGSTOP) for 14 s, alone of all, and others wait for it; its worker is started again"
    )
    assert (order.member, order.serial) == (HELD_UP.member, 1)


def test_it_is_asked_once_and_again_only_if_nothing_came_of_it() -> None:
    spec, state = running()
    assert step(spec, state, HELD_UP, 20.0)
    assert step(spec, state, HELD_UP, 22.0) == ()
    assert step(spec, state, HELD_UP, 20.0 + ASK_AGAIN_S)


def test_what_is_said_of_an_earlier_attempt_or_launcher_is_void() -> None:
    spec, state = running()
    assert step(spec, state, msgspec.structs.replace(HELD_UP, serial=7), 20.0) == ()
    step(spec, state, WorldRuns(member=HELD_UP.member, serial=1, attempt=1), 20.0)
    assert step(spec, state, HELD_UP, 21.0) == ()


def test_a_world_of_several_ranks_is_its_launcher_s_to_judge() -> None:
    spec, state = running(nproc=2)
    assert step(spec, state, HELD_UP, 20.0) == ()
