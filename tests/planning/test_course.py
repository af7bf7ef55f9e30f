"""What a simulated job lost: all parts sum up to the whole, and ETTR is what it is in jobs."""

from __future__ import annotations

import msgspec
import pytest

from robust_run.planning.course import AttemptCourse, Course, lost, saving_shares, worst_window
from robust_run.planning.mix import DEFAULT, scaled
from robust_run.planning.results import result
from robust_run.planning.simulated.world import simulate
from robust_run.planning.words import FaultKind, Mechanisms, Mix, Plan, Saving, Spread, Times
from robust_run.report.effective import share

NO_SAVES = Saving(every_s=86400.0, blocks_s=0.0, memory_steps=0)
TWO = [
    AttemptCourse(
        opened_s=0.0, started_s=10.0, first_step_s=60.0, onset_s=3660.0, told_s=3670.0, ended_s=3675.0, cause="hang"
    ),
    AttemptCourse(opened_s=3700.0, checked_s=20.0, started_s=3710.0, first_step_s=3760.0, resumed_s=3060.0),
]


def test_each_second_is_in_one_phase_and_of_one_cause() -> None:
    found = lost(Course(seed=0, until_s=10000.0, attempts=TWO), NO_SAVES, Times())
    seconds = {name: round(value * 10000.0, 6) for name, value in found.by_phase.items() if value}
    assert seconds == {
        "detect": 10.0,
        "end": 5.0,
        "check": 20.0,
        "wait": 5.0,
        "launch": 20.0,
        "load": 100.0,
        "redo": 600.0,
    }
    assert {name: round(value * 10000.0, 6) for name, value in found.by_cause.items() if value} == {
        "start": 60.0,
        "hang": 700.0,
    }
    assert found.ettr == pytest.approx((3000.0 + 6240.0) / 10000.0)
    assert found.longest_s == 700.0


def test_a_stop_is_longest_between_steps_or_until_the_end_and_a_job_that_never_stopped_has_none() -> None:
    trains = AttemptCourse(opened_s=0.0, started_s=10.0, first_step_s=60.0)
    assert lost(Course(seed=0, until_s=10000.0, attempts=[trains]), NO_SAVES, Times()).longest_s == 0.0
    hangs_at_the_end = lost(Course(seed=0, until_s=5000.0, attempts=TWO[:1]), NO_SAVES, Times())
    assert hangs_at_the_end.longest_s == 5000.0 - 3660.0
    never_trained = AttemptCourse(opened_s=0.0, started_s=10.0)
    assert lost(Course(seed=0, until_s=500.0, attempts=[never_trained]), NO_SAVES, Times()).longest_s == 500.0


@pytest.mark.parametrize("seed", range(3))
def test_what_is_lost_and_what_is_not_are_all_there_is_in_a_job_of_many_faults(seed: int) -> None:
    plan = Plan(nodes=16, standby=3, days=10.0, mix=scaled(DEFAULT, 300.0))
    course = simulate(plan, seed)
    found = lost(course, plan.saving, plan.times)
    assert found.goodput + sum(found.by_phase.values()) == pytest.approx(1.0)
    assert found.goodput + sum(found.by_cause.values()) == pytest.approx(1.0)
    assert all(value >= -1e-12 for value in found.by_phase.values())
    stretches = [each.stretch() for each in course.attempts]
    assert found.ettr == pytest.approx(share(stretches, 0.0, course.until_s, counts_steps=True))
    assert len(course.attempts) > 20


def test_a_job_that_keeps_nothing_in_memory_does_not_stand_still_for_it() -> None:
    plan = Plan(nodes=8, days=5.0, mix=Mix(faults={}))
    storage, memory = saving_shares(plan.saving, plan.times)
    assert (round(storage, 6), round(memory, 6)) == (round(2 / 1802, 6), round(0.05 / 10.05, 6))
    with_ = result(plan, 0).lost
    without = result(msgspec.structs.replace(plan, uses=Mechanisms(memory=False)), 0).lost
    trained = with_.ettr
    assert with_.by_phase["save"] == pytest.approx(trained * (storage + memory))
    assert without.by_phase["save"] == pytest.approx(trained * storage)
    assert with_.by_cause["saving_memory"] == pytest.approx(trained * memory)


def test_the_worst_hour_is_found_wherever_it_begins() -> None:
    work = [(0.0, 9000.0), (9600.0, 12000.0), (13800.0, 40000.0)]
    assert worst_window(work, 3600.0, 40000.0) == pytest.approx((3600.0 - 1800.0 - 0.0) / 3600.0)
    by_hand = min(
        sum(max(min(end, at + 3600) - max(begin, at), 0) for begin, end in work) / 3600 for at in range(3600, 36400, 10)
    )
    assert worst_window(work, 3600.0, 40000.0) == pytest.approx(by_hand)


def test_the_same_seed_is_the_same_job_and_another_is_not() -> None:
    plan = Plan(nodes=8, standby=2, days=5.0, mix=scaled(DEFAULT, 300.0))
    assert simulate(plan, 1) == simulate(plan, 1)
    assert simulate(plan, 1) != simulate(plan, 2)


def test_a_job_without_faults_loses_its_start_alone() -> None:
    plan = Plan(nodes=8, days=5.0, mix=Mix(faults={}), saving=NO_SAVES)
    course = simulate(plan, 0)
    found = lost(course, plan.saving, plan.times)
    assert len(course.attempts) == 1
    assert found.by_cause.keys() == {"start", "other"} | {"saving", "saving_memory", "slow"}
    assert found.ettr == pytest.approx(1.0, abs=0.001)


def _of_one(kind: FaultKind, **changes: object) -> Plan:
    """A plan with one kind of fault, which costs nothing but what the test is about."""
    return Plan(nodes=20, standby=5, days=30.0, mix=Mix(faults={"it": kind}, lemons=0.0, misrepaired=0.0), **changes)  # type: ignore[arg-type]


def test_a_node_with_a_fault_in_it_is_found_by_checks_and_goes() -> None:
    kind = FaultKind(shows="crash", trouble="cuda", per_1000_node_days=30.0, stays=1.0, found=1.0, recurs=Spread(30.0))
    with_checks = simulate(_of_one(kind), 3)
    without = simulate(_of_one(kind, uses=Mechanisms(checks=False)), 3)
    assert with_checks.evicted["robust-run, ladder"] >= 5
    assert "robust-run, ladder" not in without.evicted
    assert len(without.attempts) > 1.5 * len(with_checks.attempts)


def test_a_lost_node_is_replaced_by_a_standby_or_waited_for() -> None:
    kind = FaultKind(shows="lost", per_1000_node_days=30.0, detect=Spread(4.0), stays=1.0)
    plan = _of_one(kind)
    covered = lost(simulate(plan, 1), plan.saving, plan.times)
    alone = _of_one(kind)
    alone = Plan(nodes=20, standby=0, days=30.0, mix=alone.mix)
    waits = lost(simulate(alone, 1), alone.saving, alone.times)
    assert covered.by_phase["wait"] == pytest.approx(0.0, abs=1e-6)
    assert waits.by_phase["wait"] > 0.1


def test_memory_saves_what_a_rare_save_to_storage_loses() -> None:
    kind = FaultKind(shows="crash", trouble="cuda", per_1000_node_days=30.0)
    rare = Saving(every_s=7200.0)
    kept = _of_one(kind, saving=rare)
    not_kept = _of_one(kind, saving=rare, uses=Mechanisms(memory=False))
    redone = [lost(simulate(each, 1), each.saving, each.times).by_phase["redo"] for each in (kept, not_kept)]
    assert redone[0] < 0.1 * redone[1]


def test_a_bad_update_is_taken_back_and_without_that_people_have_to_come() -> None:
    kind = FaultKind(shows="bad_update", per_day=0.5, detect=Spread(10.0))
    back, people = simulate(_of_one(kind), 2), simulate(_of_one(kind, uses=Mechanisms(rollback=False)), 2)
    assert back.actions["rollback"] >= 5
    assert back.ended == 0
    assert "rollback" not in people.actions
    assert people.ended >= 5, "the same exception after a step each time: no restart gets past it"
    assert all("a step at most" in why for why in people.ended_for)
