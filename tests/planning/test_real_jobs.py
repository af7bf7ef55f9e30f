"""A real job with faults and its plan make as many attempts and do the same about each fault: `bench/plan_real.py` in small."""

from __future__ import annotations

import sys
from pathlib import Path

import host_warmth
import msgspec
import pytest
from hosts import need_hosts

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from plan_real_draw import EVERY, as_faults, drawn
from plan_real_job import came_or_problem
from plan_real_plan import Measured, measured, simulated
from plan_real_words import BACK_S, HORIZON_S, LEAD_S, MIX, NOT_RAISED, Came, RealJob, Strike

from robust_run.planning.course import AttemptCourse
from robust_run.planning.faults import Fault
from robust_run.planning.mix import DEFAULT
from robust_run.planning.simulated.world import simulate
from robust_run.planning.words import FaultKind, Mix, Plan, Spread, Times

NO_LOSSES = Plan(nodes=2, gpus_per_node=1, standby=2, days=1.0, mix=DEFAULT)
KNOWN = Measured(
    jobs=1,
    mix=MIX,
    times=Times(
        end=Spread(0.03),
        launch=Spread(0.04),
        cold_launch=Spread(1.0),
        connect=Spread(0.3),
        load_storage=Spread(0.2),
        localise=Spread(5.7),
        step=0.11,
        ask=0.01,
        ask_all=0.01,
    ),
    update_s=0.0,
    counts={},
)


@pytest.mark.timeout(600)
def test_a_real_job_and_its_plan_do_the_same_about_the_same_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_hosts()
    monkeypatch.setenv(host_warmth.WANTED, "yes")
    strikes = (
        Strike(at_s=5.0, name="killed", host=0),
        Strike(at_s=8.0, name="input_output", host=1),
        Strike(at_s=11.0, name="power", host=1),
    )
    job = RealJob(number=0, every=20, strikes=strikes, is_patient=True)
    came = came_or_problem(job, tmp_path, tmp_path / "kept.jsonl")
    assert came.problem == ""
    assert [each.came for each in came.strikes] == ["fired"] * 3
    when = [msgspec.structs.replace(each, at_s=each.fired_s) for each in came.strikes]
    plan = simulated(msgspec.structs.replace(came, strikes=when), KNOWN, [0])[0]
    done = {
        name: count for name, count in came.actions.items() if name != "report"
    }  # ranks that wait for a lost node, say
    assert done == plan.actions == {"relaunch": 2, "evict": 1}
    assert len(came.attempts) == len(plan.attempts) == 4
    assert 0.0 < came.ettr < 1.0
    print(f"ETTR {came.ettr:.1%} in {came.until_s:.0f} s")


def test_a_plan_meets_the_faults_that_it_is_given_and_no_others() -> None:
    lost = FaultKind(shows="lost", detect=Spread(4.0))
    given = [Fault(number=0, at_s=3600.0, name="power", kind=lost, host=1, stays=False)]
    course = simulate(NO_LOSSES, 0, given)
    assert (course.faults, len(course.attempts)) == ({"power": 1}, 2)
    assert course.attempts[0].onset_s == 3600.0
    assert len(simulate(NO_LOSSES, 0, []).attempts) == 1
    assert simulate(NO_LOSSES, 0, given) == course


def test_a_rank_that_was_killed_has_no_last_words() -> None:
    """The core takes it for what it is: one plain crash is tried again, without checks of the nodes."""
    killed = FaultKind(shows="crash", trouble="killed", detect=Spread(0.0))
    given = [Fault(number=0, at_s=3600.0, name="killed", kind=killed, host=0, stays=False)]
    course = simulate(NO_LOSSES, 0, given)
    assert course.actions == {"relaunch": 1}
    assert course.attempts[1].checked_s == 0.0


def test_after_a_rollback_a_plan_goes_on_from_storage_as_a_job_does() -> None:
    """Memory holds what the bad code saved last, and that is not trusted."""
    bad = FaultKind(shows="bad_update", detect=Spread(60.0))
    given = [Fault(number=0, at_s=36_000.0, name="bad", kind=bad, host=-1, stays=False)]
    course = simulate(NO_LOSSES, 0, given)
    assert [each.action for each in course.attempts] == ["relaunch", "rollback", ""]
    assert [each.source for each in course.attempts] == ["", "memory", "storage"]
    resumed = [each.resumed_s for each in course.attempts]
    assert resumed[1] is not None and resumed[2] is not None and 0 < resumed[2] < resumed[1]


def test_schedules_are_drawn_by_the_process_of_plans_and_each_kind_comes() -> None:
    jobs = [drawn(7, number) for number in range(60)]
    assert jobs == [drawn(7, number) for number in range(60)]
    strikes = [each for job in jobs for each in job.strikes]
    assert {each.name for each in strikes} == set(MIX.faults)
    assert {job.every for job in jobs} == set(EVERY)
    assert all(LEAD_S <= each.at_s < HORIZON_S for each in strikes)
    assert not [each for each in strikes if each.name == "power" and each.host == 0], "it has the controller"
    assert [each.at_s for each in as_faults(list(jobs[0].strikes), MIX)] == [each.at_s for each in jobs[0].strikes]


def test_times_of_a_plan_are_what_calibration_jobs_took() -> None:
    attempts = [AttemptCourse(opened_s=0.1, first_step_s=1.5)]
    samples = {
        "end": [0.1, 0.2, 0.3],
        "load_nothing": [0.4, 0.5, 0.6],
        "load_storage": [0.7, 0.9, 1.1],
        "act stopped": [10.0, 11.0, 12.0],
        "localise": [5.0, 6.0, 7.0],
        "step": [0.1],
        "ask": [0.01],
        "ask_all": [0.02],
    }
    known = measured([Came(job=drawn(7, 0), strikes=[], attempts=attempts, samples=samples)])
    assert known.times.end.median == 0.2
    assert (known.times.connect.median, known.times.cold_launch.median) == (0.5, 1.0)
    assert known.times.load_storage.median == pytest.approx(0.4)
    assert known.mix.faults["stopped"].detect.median == pytest.approx(5.0)


def test_what_no_rank_could_raise_is_no_fault_of_the_plan() -> None:
    strikes = [Strike(at_s=20.0, name="input_output", host=0, came=NOT_RAISED)]
    came = Came(job=RealJob(number=0, every=20, strikes=tuple(strikes)), strikes=strikes)
    assert len(simulated(came, KNOWN, [0])[0].attempts) == 1
    strikes[0].came = "fired"
    assert len(simulated(came, KNOWN, [0])[0].attempts) == 2
    assert isinstance(MIX, Mix) and MIX.faults["power"].repair == Spread(BACK_S)
