"""The lease of an agent: whatever is delayed, lost or repeated, its workers are dead before the controller counts it as lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from clusters import wait_for
from controllers import hello_of
from hypothesis import given
from hypothesis import strategies as st

from robust_run.clock import SystemClock
from robust_run.launcher.agent.workers.process_tree import read_status
from robust_run.launcher.control import frames
from robust_run.launcher.control.messages import Orders, Welcome
from robust_run.launcher.controller.service import Service
from robust_run.launcher.core.failure_detector import FailureDetector
from robust_run.launcher.core.state import JobState, Member
from robust_run.launcher.model.actions import EndAttempt, Order
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.lease_times import GUARD_AFTER_S, LeaseTimes
from robust_run.launcher.start.many.fence import ENDING_S, MOST_SPARED, Cell, Lease
from robust_run.launcher.start.many.second_fence import (
    GIVEN_UP_S,
    HELD_UP_S,
    KILLING_LOOK_S,
    LOOK_S,
    OWN_MOMENT_S,
    SecondFence,
)

LENGTH_S = 3.0
NOW_S = 1000.0


@pytest.fixture
def cell() -> Cell:
    return Cell()


@pytest.fixture
def lease(cell: Cell) -> Lease:
    lease = Lease(cell)
    lease.times = LeaseTimes(LENGTH_S)
    return lease


# --- the agent's fence ------------------------------------------------------------------------------------------------


def test_a_lease_that_never_began_does_not_end(lease: Lease) -> None:
    assert not lease.is_over(1e9)
    assert lease.silent_s(1e9) == 0.0


def test_it_counts_from_when_the_heartbeat_was_sent_not_from_its_answer(lease: Lease) -> None:
    lease.renew(NOW_S)
    lease.sent(1, NOW_S + 1.0)
    lease.answered(1)  # whenever that is
    assert not lease.is_over(NOW_S + 3.99)
    assert lease.is_over(NOW_S + 4.0)
    assert lease.silent_s(NOW_S + 4.0) == LENGTH_S


def test_the_guard_waits_for_an_agent_that_is_awake_and_ends_its_workers(lease: Lease, cell: Cell) -> None:
    lease.renew(NOW_S)
    lease.guard(running=True)
    thawed_s = NOW_S + 60.0
    assert cell.is_over(thawed_s)
    lease.fenced(thawed_s)
    assert not cell.is_over(thawed_s + 3.0)
    lease.fenced(thawed_s + 3.0)
    assert cell.is_over(thawed_s + ENDING_S + GUARD_AFTER_S + 0.01), "looking again gives no more time"
    lease.renew(thawed_s + 4.0)
    assert not cell.is_over(thawed_s + 4.0 + LENGTH_S)
    assert cell.is_over(thawed_s + 4.0 + LENGTH_S + GUARD_AFTER_S + 0.01)


def test_a_heartbeat_without_an_answer_renews_nothing(lease: Lease) -> None:
    lease.renew(NOW_S)
    lease.sent(1, NOW_S + 2.9)
    assert lease.is_over(NOW_S + 3.0)


def test_answers_of_a_former_connection_renew_nothing(lease: Lease) -> None:
    lease.renew(NOW_S)
    lease.sent(1, NOW_S + 1.0)
    lease.forget()
    lease.answered(1)
    assert lease.is_over(NOW_S + 3.0)


def test_answers_that_come_late_twice_or_for_nothing_do_no_harm(lease: Lease) -> None:
    lease.sent(1, NOW_S)
    lease.sent(2, NOW_S + 1.0)
    lease.answered(2)
    for number in (1, 2, 3, -1):
        lease.answered(number)
    assert lease.renewed_s == NOW_S + 1.0


def test_a_renewal_never_makes_it_shorter(lease: Lease) -> None:
    lease.renew(NOW_S)
    lease.renew(NOW_S - 1.0)
    assert not lease.is_over(NOW_S + 2.9)


# --- the guard's fence ------------------------------------------------------------------------------------------------


def test_the_guard_waits_a_moment_longer_than_the_agent(lease: Lease, cell: Cell) -> None:
    lease.renew(NOW_S)
    lease.guard(running=True)
    assert lease.is_over(NOW_S + LENGTH_S)
    assert not cell.is_over(NOW_S + LENGTH_S + GUARD_AFTER_S - 0.01)
    assert cell.is_over(NOW_S + LENGTH_S + GUARD_AFTER_S + 0.01)


def test_the_guard_leaves_an_agent_without_workers_alone(lease: Lease, cell: Cell) -> None:
    lease.renew(NOW_S)
    assert not cell.is_over(1e9)
    lease.guard(running=True)
    lease.guard(running=False)
    assert not cell.is_over(1e9)


def test_the_guard_learns_of_every_renewal(lease: Lease, cell: Cell) -> None:
    lease.renew(NOW_S)
    lease.guard(running=True)
    lease.renew(NOW_S + 10.0)
    assert not cell.is_over(NOW_S + 10.0 + LENGTH_S)
    assert cell.is_over(NOW_S + 10.0 + LENGTH_S + 2 * GUARD_AFTER_S)


def test_the_guard_does_not_end_what_has_no_lease(lease: Lease, cell: Cell) -> None:
    lease.guard(running=True)
    assert not cell.is_over(1e9)


# --- both ends --------------------------------------------------------------------------------------------------------


Delay = st.floats(0.0, 20.0)
Beats = st.lists(st.tuples(st.floats(0.01, 5.0), Delay, st.none() | Delay, st.booleans()), min_size=1, max_size=30)


@given(beats=Beats, travel_s=Delay)
def test_workers_are_dead_before_the_controller_counts_the_node_as_lost(
    beats: list[tuple[float, float, float | None, bool]], travel_s: float
) -> None:
    """Heartbeats take their time, arrive or not, are answered or not, and connections are lost in between."""
    cell = Cell()
    lease, detector = Lease(cell), FailureDetector(LeaseTimes(LENGTH_S).lost_s)
    lease.times = LeaseTimes(LENGTH_S)
    now_s, answers = NOW_S, []
    detector.heard("node", NOW_S + travel_s)  # its Hello
    lease.renew(NOW_S)
    lease.guard(running=True)
    for number, (pause_s, there_s, back_s, is_lost) in enumerate(beats):
        now_s += pause_s
        for _, answered in sorted(each for each in answers if each[0] <= now_s):
            lease.answered(answered)
        answers = [each for each in answers if each[0] > now_s]
        if is_lost:
            lease.forget()
            continue
        lease.sent(number, now_s)
        detector.heard("node", now_s + there_s)
        if back_s is not None:
            answers.append((now_s + there_s + back_s, number))
    for _, answered in sorted(answers):
        lease.answered(answered)
    assert lease.renewed_s is not None
    both_fences_s = lease.renewed_s + LENGTH_S + GUARD_AFTER_S
    assert lease.is_over(both_fences_s) and cell.is_over(both_fences_s + 0.001)
    detector.lost(both_fences_s - 0.1)  # it looks more than once
    assert not detector.lost(both_fences_s), "the controller was faster"
    detector.lost(1e9)
    assert detector.lost(1e9 + 0.1)


# --- a machine that was suspended, clocks and all -----------------------------------------------------------------------


class Line:
    """As much of a connection as the controller's side of a greeting needs."""

    id, name, clock_ahead_s, last_heard_s = "id-n1", "n1", 0.0, 0.0

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def send_frame(self, frame: bytes) -> None:
        message = frames.decode_from_controller(frame[4:])
        assert isinstance(message, Orders)
        self.orders += message.orders


@pytest.mark.parametrize(
    ("attempt", "current", "used", "ends"),
    [
        (0, 1, False, True),  # it was replaced, and has not noticed
        (0, 1, True, True),  # it was taken again, and still runs what it was lost with
        (1, 1, False, True),  # the attempt is over, nodes are gathered
        (1, 1, True, False),  # a connection was lost, nothing else
        (2, 1, True, False),  # a controller that does not know everything ends nothing
        (-1, 1, False, False),  # it never had any
    ],
)
def test_whoever_comes_back_with_an_attempt_it_was_given_up_with_is_told_to_end_it(
    attempt: int, current: int, used: bool, ends: bool
) -> None:
    state = JobState(attempt=current, unended={"id-n1"} if used else {"id-n0"})
    state.members = {"id-n1": Member(info=hello_of("n1").node, joined=0)}
    many = ManyNodes(fewest=1, most=1, host="n0", port=1)
    spec: Any = SimpleNamespace(rdzv_id="r")
    service = Service(spec, many, "run", SystemClock(), lambda _: None, "id-n0")
    service.controller = SimpleNamespace(state=state, tell=lambda _: None)  # type: ignore[assignment]
    line: Any = Line()
    answer = service.joined(line, msgspec.structs.replace(hello_of("n1"), attempt=attempt))
    assert isinstance(answer, Welcome)
    assert line.orders == ([EndAttempt(attempt=attempt)] if ends else [])


# --- a real guard -----------------------------------------------------------------------------------------------------


GUARD = """
import os, signal, sys, time
from robust_run.launcher.start.guard import hold_signals, run_guarded
from robust_run.launcher.model.lease_times import LeaseTimes
from robust_run.launcher.start.many.fence import Cell, Lease

cell = Cell()

def child():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.pause()
    return pid

def agent(lifeline):
    worker, controller = child(), child()
    cell.spare([controller])
    lease = Lease(cell)
    lease.times = LeaseTimes(0.2)
    lease.renew(time.monotonic())
    lease.guard(running=sys.argv[1] == "stuck")
    print(os.getpid(), worker, controller, flush=True)
    if sys.argv[1] == "stuck":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        os.kill(worker, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), os.waitpid(controller, os.WNOHANG)[0], flush=True)
    return 5

mask = hold_signals()
sys.exit(run_guarded(agent, (), mask, fence=cell))
"""


def test_the_guard_kills_the_workers_of_a_stopped_agent_and_leaves_agent_and_controller_alone(tmp_path: Path) -> None:
    guard = guarded(tmp_path, "stuck")
    assert guard.stdout is not None
    agent, worker, controller = map(int, guard.stdout.readline().split())
    wait_for(lambda: (status := read_status(worker)) is None or status.is_gone, "the worker to be dead", 300)
    living = [status for pid in (agent, controller) if (status := read_status(pid)) is not None]
    assert [status.is_gone for status in living] == [False, False]
    os.kill(agent, signal.SIGCONT)
    out, err = guard.communicate(timeout=300)
    assert out.split() == ["-9", "0"]
    assert guard.returncode == 5, "the agent goes on, and the exit code is its own"
    assert err.count("did not answer when its lease was over; its workers were ended") == 1
    for pid in (agent, worker, controller):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_agent_that_ends_by_itself_keeps_its_exit_code(tmp_path: Path) -> None:
    guard = guarded(tmp_path, "well")
    _, err = guard.communicate(timeout=300)
    assert (guard.returncode, err) == (5, "")


def guarded(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    script = tmp_path / "guard.py"
    script.write_text(GUARD)
    return subprocess.Popen(
        [sys.executable, str(script), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


# --- what the guard does, decided ----------------------------------------------------------------------------------------


class Scene:
    """A fence that is over or not, and an agent with some processes."""

    def __init__(self) -> None:
        self.over, self.left, self.said = False, 3, 0
        self.did: list[str] = []

    def is_over(self, _now_s: float) -> bool:
        return self.over

    def spared(self) -> set[int]:
        return {7}

    def kill(self, spared: Collection[int], _now_s: float) -> bool:
        assert spared == {7}
        had, self.left = self.left, max(0, self.left - 1)
        self.did += ["kill"] if had else []
        return bool(had)

    def give_up(self) -> None:
        self.did.append("give up")

    def say(self) -> None:
        self.said += 1


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_does_nothing_while_the_lease_holds(scene: Scene) -> None:
    second = SecondFence(scene, scene, scene.say, NOW_S)
    assert {second.look(NOW_S + beat * LOOK_S) for beat in range(1, 100)} == {LOOK_S}
    assert (scene.did, scene.said) == ([], 0)


def test_it_kills_until_nothing_is_left_and_says_so_once_a_lease(scene: Scene) -> None:
    second = SecondFence(scene, scene, scene.say, NOW_S)
    scene.over = True
    assert [second.look(NOW_S + 0.05 + beat * 0.002) for beat in range(4)] == [*[KILLING_LOOK_S] * 3, LOOK_S]
    scene.left = 1  # an agent that was in the middle of starting it
    second.look(NOW_S + 0.2)
    assert (scene.did, scene.said) == (["kill"] * 4, 1)
    scene.over = False
    second.look(NOW_S + 0.25)
    scene.over, scene.left = True, 1
    second.look(NOW_S + 0.3)
    assert scene.said == 2


def test_what_cannot_be_killed_for_now_costs_the_guard_no_cpu(scene: Scene) -> None:
    second = SecondFence(scene, scene, scene.say, NOW_S)
    scene.over, scene.left = True, 10_000  # a worker that waits in the kernel
    assert second.look(NOW_S + 0.05) == KILLING_LOOK_S
    for beat in range(60):
        pause_s = second.look(NOW_S + 0.1 + beat * 0.05)
    assert pause_s == LOOK_S


def test_after_the_machine_stood_still_the_agent_may_do_it_itself(scene: Scene) -> None:
    second = SecondFence(scene, scene, scene.say, NOW_S)
    scene.over = True
    thawed_s = NOW_S + 60.0
    assert second.look(thawed_s) == LOOK_S
    assert second.look(thawed_s + OWN_MOMENT_S - 0.01) == LOOK_S
    assert scene.did == []
    assert second.look(thawed_s + OWN_MOMENT_S) == KILLING_LOOK_S


def test_an_agent_that_does_nothing_for_ten_minutes_is_killed_but_a_suspended_machine_does_not_count(
    scene: Scene,
) -> None:
    second = SecondFence(scene, scene, scene.say, NOW_S)
    scene.over, scene.left = True, 0
    for night in range(1, 20):
        second.look(NOW_S + night * 40_000.0)
    assert scene.did == []
    now_s = NOW_S + 1e6
    for _ in range(int(GIVEN_UP_S / HELD_UP_S) + 1):
        now_s += HELD_UP_S
        second.look(now_s)
    assert "give up" in scene.did


def test_what_the_guard_must_spare_is_what_was_said_last(cell: Cell) -> None:
    assert cell.spared() == set()
    cell.spare([5, 6])
    cell.spare([6])
    assert cell.spared() == {6}
    cell.spare(range(1, 1000))
    assert len(cell.spared()) == MOST_SPARED
