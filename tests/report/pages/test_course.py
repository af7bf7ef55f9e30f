"""The course of an incident and what it cost."""

from __future__ import annotations

import msgspec
import pytest
from page_ground import BEGIN_S, attempt, incident

from robust_run.report.effective import Standstill
from robust_run.report.pages.course import intervals, lost_of, milestones
from robust_run.report.pages.types import ReportedCheckpoint
from robust_run.report.types import Action

STRUCK = attempt(0, 0.0, started_s=1.0, first_step_s=10.0, verdict_s=104.9, evicted_s=104.9, ended_s=106.0, steps=90)
NEXT = attempt(1, 106.5, started_s=107.0, first_step_s=112.0)


def test_each_interval_is_named_after_what_it_was_spent_on() -> None:
    found = intervals(milestones(incident(), STRUCK, NEXT))
    assert [(each.name, round(each.seconds, 2)) for each in found] == [
        ("unnoticed", 4.0),
        ("finding the cause", 0.9),
        ("ending the old workers", 1.1),
        ("waiting for nodes", 0.5),
        ("starting workers", 0.5),
        ("starting up", 5.0),
    ]


def test_an_eviction_is_a_moment_of_its_own() -> None:
    evicted = incident(action=Action(name="evict", nodes=("gpu-0001",)))
    assert [each.name for each in milestones(evicted, STRUCK, NEXT)][:4] == ["onset", "suspected", "verdict", "evicted"]


def test_a_verdict_that_came_after_the_end_stands_after_it() -> None:
    names = [each.name for each in milestones(incident(decided_s=7.0), attempt(0, 0.0, ended_s=106.0), NEXT)]
    assert names.index("old workers ended") < names.index("verdict")


def test_a_report_has_nothing_after_its_verdict() -> None:
    reported = incident(action=Action(name="report"), resumed_s=None)
    assert [each.name for each in milestones(reported, STRUCK, None)] == ["onset", "suspected", "verdict"]
    assert lost_of(reported, STRUCK, None, BEGIN_S + 500.0).seconds == 0.0


def test_a_report_of_a_standstill_costs_it_and_tells_when_ranks_went_on() -> None:
    reported = incident(action=Action(name="report"), resumed_s=None)
    stands = msgspec.structs.replace(STRUCK, ended_s=None, standstills=(Standstill(BEGIN_S + 100.0, None, 1),))
    cost = lost_of(reported, stands, None, BEGIN_S + 130.0)
    assert (cost.seconds, cost.ranks, cost.is_over, cost.steps) == (pytest.approx(30.0), 8, False, 0)
    went_on = msgspec.structs.replace(stands, standstills=(Standstill(BEGIN_S + 100.0, BEGIN_S + 140.0, 1),))
    assert [each.name for each in milestones(reported, went_on, None)][-1] == "ranks went on"
    cost = lost_of(reported, went_on, None, BEGIN_S + 500.0)
    assert (cost.seconds, cost.is_over) == (pytest.approx(40.0), True)
    ended = msgspec.structs.replace(stands, told_s=BEGIN_S + 110.0)
    assert lost_of(reported, ended, None, BEGIN_S + 500.0).seconds == pytest.approx(10.0)


def test_no_moment_is_before_the_onset() -> None:
    early = incident(detected_s=-3.0, decided_s=-2.0)
    assert all(each.seconds >= 0.0 for each in intervals(milestones(early, None, None)))


def test_without_a_checkpoint_all_steps_may_be_lost() -> None:
    lost = lost_of(incident(), STRUCK, None, BEGIN_S + 500.0)
    assert (lost.seconds, lost.ranks, lost.steps, lost.is_most) == (pytest.approx(12.0), 8, 90, True)


def test_with_a_checkpoint_those_since_are_lost() -> None:
    lost = lost_of(incident(), STRUCK, ReportedCheckpoint(created_s=BEGIN_S + 80.0), BEGIN_S + 500.0)
    assert (lost.steps, lost.is_most, lost.redone_s) == (20, False, pytest.approx(20.0))


def test_an_incident_without_a_next_step_costs_until_the_end() -> None:
    lost = lost_of(incident(resumed_s=None), STRUCK, None, BEGIN_S + 130.0)
    assert (lost.seconds, lost.is_over) == (pytest.approx(30.0), False)


def test_an_attempt_that_made_no_step_lost_none() -> None:
    assert lost_of(incident(), attempt(0, 0.0, steps=0), None, BEGIN_S).steps == 0
    assert lost_of(incident(), attempt(0, 0.0), None, BEGIN_S).steps is None


def test_of_a_job_that_is_over_nothing_goes_on_costing() -> None:
    stopped = incident(resumed_s=None)
    struck = attempt(0, 0.0, first_step_s=10.0, ended_s=106.0, steps=90)
    assert not lost_of(stopped, struck, None, BEGIN_S + 130.0).is_over
    over = lost_of(stopped, struck, None, BEGIN_S + 106.0, is_final=True)
    assert over.is_over
    assert over.seconds == pytest.approx(6.0)
