"""Random faults over several hosts: how schedules are drawn, and a fixed small sample of what `make soak-chaos` tries."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from chaos import ACTS, FOR_GOOD, HARMLESS, NODES, Fault, Schedule, drawn
from chaos_job import try_out, undisturbed
from hosts import need_hosts

SOME = [drawn(random.Random(seed)) for seed in range(600)]


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(4, 0.0, (Fault(0.5, "kill controller", 0, 0.0), Fault(0.5, "late joiner", 3, 0.0))),
        Schedule(3, 0.0, (Fault(0.5, "power", 0, 3.0), Fault(1.0, "full disk", 1, 2.0))),
    ],
    ids=lambda schedule: schedule.name,
)
def test_the_weights_are_those_of_an_undisturbed_run(schedule: Schedule, tmp_path: Path) -> None:
    need_hosts()
    assert try_out(schedule, tmp_path, admission=False) == ""


def test_a_seed_draws_the_same_again_and_everything_is_drawn() -> None:
    assert [drawn(random.Random(seed)) for seed in range(600)] == SOME
    assert {fault.act for schedule in SOME for fault in schedule.faults} == set(ACTS)
    assert {schedule.hosts for schedule in SOME} == {3, 4, 5}
    assert any(len({fault.at_s for fault in each.faults}) < len(each.faults) for each in SOME), "two at once"


def test_each_schedule_can_be_survived() -> None:
    for schedule in SOME:
        away = [fault for fault in schedule.faults if fault.act in FOR_GOOD and not fault.lasts_s]
        assert len(away) <= schedule.hosts - NODES - 1
        assert len({fault.host for fault in schedule.faults}) == len(schedule.faults)
        assert schedule.hosts - len(schedule.late) >= NODES
        assert not schedule.struck & {fault.host for fault in schedule.faults if fault.act in HARMLESS}


def test_the_weights_of_an_undisturbed_run_depend_on_each_step() -> None:
    assert len({tuple(undisturbed(steps)) for steps in range(50)}) == 50
