"""Random faults in jobs of several roles: how schedules are drawn, and a fixed small sample of what `make soak-roles` tries."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hosts import need_hosts
from roles_chaos import (
    FIRST,
    HOSTS,
    LONG_LEASE_S,
    MORE,
    ON_HOSTS,
    ROLES,
    SHORT_LEASE_S,
    Fault,
    Schedule,
    drawn,
    order_for,
)
from roles_chaos_job import try_out
from roles_program import weights_after

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from soak_roles import Came, part

SOME = [drawn(random.Random(number), number) for number in range(300)]


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(
            synchronous=True,
            hosts=0,
            lease_s=LONG_LEASE_S,
            order=ROLES,
            faults=(
                Fault(0.5, "kill worker", "rollout-0"),
                Fault(1.0, "kill leader"),
                Fault(1.0, "kill worker", "trainer-0"),
                Fault(1.5, "kill launcher", "reward-0"),
            ),
        ),
        Schedule(True, HOSTS, LONG_LEASE_S, order_for("reward"), (Fault(0.5, "stop worker", "reward-0"),)),
    ],
    ids=lambda schedule: schedule.name,
)
def test_all_is_settled_once_and_weights_are_those_of_an_undisturbed_run(schedule: Schedule, tmp_path: Path) -> None:
    if schedule.hosts:
        need_hosts()
    assert try_out(schedule, tmp_path) == ""


def test_a_number_draws_the_same_again_and_each_act_meets_each_role_before_long() -> None:
    assert [drawn(random.Random(number), number) for number in range(300)] == SOME
    for begin in (0, 30):
        firsts = {(f.act, f.role) for schedule in SOME[begin : begin + 30] for f in schedule.faults}
        assert set(FIRST) <= firsts
    assert {schedule.synchronous for schedule in SOME[:16]} == {True, False}
    assert {schedule.lease_s for schedule in SOME} == {SHORT_LEASE_S, LONG_LEASE_S}


def test_each_schedule_can_be_survived() -> None:
    for schedule in SOME:
        acts = [fault.act for fault in schedule.faults]
        assert acts.count("kill leader") < 4, "a leader that dies four times in a row ends the job"
        assert len([act for act in acts if act not in MORE]) <= 1, "of two that are stopped none is started again"
        assert bool(schedule.hosts) == bool(ON_HOSTS & set(acts))
        for fault in schedule.faults:
            if fault.act in ON_HOSTS:
                place = schedule.order.index(fault.role) + int(fault.member.endswith("1"))
                assert 1 <= place < HOSTS, "the node that leads is not struck"


def test_the_weights_of_an_undisturbed_run_depend_on_each_step() -> None:
    assert len({tuple(weights_after(steps)) for steps in range(50)}) == 50


def test_the_page_says_what_was_done_and_what_failed() -> None:
    came = [Came(number, SOME[number], "it hung | for\nlong" if number == 3 else "", 30.0) for number in range(4)]
    text = "\n".join(part(came, 7, "today"))
    assert "today: seed 7, 4 schedules with" in text
    assert "1 failed, 2 minutes" in text
    assert f"- {SOME[3].name} (`python bench/soak.py --seed 7 --roles 1 --only 3`): it hung | for long" in text
