"""What follows from a node that stays apart from its peers: by `--on-outlier`, and only where it shows a sign of a fault."""

from __future__ import annotations

from typing import Any

import pytest
from stories import Story, several_nodes

from robust_run.health.checks.types import CheckJudgement, SuspectNode
from robust_run.health.types import Event as Sign
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import EndAttempt, RecordIncident
from robust_run.launcher.model.check_events import Decided, Diagnose, Diagnosed
from robust_run.launcher.model.health_events import HealthSeen, RuleSpoke

LANES, DISK, POWER = ("gpu_pcie_lanes", 8.0, 16.0), ("disk_wait_ms", 300.0, 2.0), ("gpu_power_watts", 300.0, 600.0)


def job(**policy: Any) -> Story:
    """Four nodes that train, and one that stands by."""
    story = several_nodes("a", "b", "c", "d", **{"diagnose": "auto", "max_restarts": 9, **policy})
    story.joins("spare")
    return story


def stays(
    story: Story, node: str, metric: str, value: float | None, peers: float | None, after_s: float = 1.0
) -> list[Any]:
    detail = f"{metric} is odd, still after 300 s of training"
    sign = Sign(
        name=f"outlier.stays.{metric}",
        kind="alert",
        subject="",
        detail=detail,
        at_s=story.now_s,
        value=value,
        limit=peers,
    )
    return story.happens(HealthSeen(node=node, event=sign, at_unix_s=1e9), after_s)


def of(kind: type, actions: list[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def all_end(story: Story) -> list[Any]:
    last: list[Any] = []
    for placement in tuple(story.state.layout):
        last = story.ends(placement.node)
    return last


@pytest.mark.parametrize("asked", ["report", "diagnose", "evict"])
def test_a_node_that_only_does_less_or_more_is_told_whatever_was_asked(asked: str) -> None:
    story = job(on_outlier=asked)
    for metric, value, peers in (POWER, ("cpu_percent", 90.0, 30.0), ("gpu_pcie_lanes", None, None)):
        actions = stays(story, "b", metric, value, peers)
        assert not of(EndAttempt, actions) and not of(RecordIncident, actions)
    assert story.state.phase == "running" and not story.state.evicted


def test_nothing_is_done_unless_it_was_asked() -> None:
    story = job()
    (spoke,) = of(RuleSpoke, stays(story, "b", *LANES))
    assert (spoke.rule, spoke.rung) == ("outlier.stays", "report")
    assert story.state.phase == "running"


@pytest.mark.parametrize(("sign", "check"), [(LANES, "exchange"), (DISK, "disk")])
def test_diagnose_suspends_the_job_for_the_checks_that_fit_and_goes_on_if_nothing_is_found(
    sign: Any, check: str
) -> None:
    story = job(on_outlier="diagnose")
    assert of(EndAttempt, stays(story, "b", *sign))
    actions = all_end(story)
    assert of(Decided, actions)[-1].rule == "sensor_diagnose"
    assert check in of(Diagnose, actions)[0].checks
    well = CheckJudgement(passed=tuple(story.world))
    story.happens(Diagnosed(attempt=story.state.attempt, judgement=well, at_unix_s=9.0), 5.0)
    assert story.world == ["a", "b", "c", "d"] and not story.state.evicted
    story.starts()
    assert not of(EndAttempt, stays(story, "b", *sign, after_s=3600.0)), "checked for the same an hour ago"


def test_diagnose_evicts_the_node_if_the_checks_find_it_at_fault() -> None:
    story = job(on_outlier="diagnose")
    stays(story, "b", *LANES)
    all_end(story)
    found = SuspectNode(node="b", check="exchange", confidence="high", rule="odd", sentence="b is slow")
    judged = CheckJudgement(suspects=(found,), passed=("a", "c", "d"))
    story.happens(Diagnosed(attempt=story.state.attempt, judgement=judged, at_unix_s=9.0), 5.0)
    assert story.world == ["a", "spare", "c", "d"]


def test_evict_takes_out_a_node_whose_sign_is_certain_and_has_it_checked_where_it_is_not() -> None:
    story = job(on_outlier="evict")
    actions = stays(story, "b", *LANES)
    assert of(EndAttempt, actions) and set(story.state.evicted) == {"b"}
    other = job(on_outlier="evict")
    assert of(EndAttempt, stays(other, "b", *DISK)) and not other.state.evicted
    assert of(Diagnose, all_end(other))


def test_no_node_is_evicted_for_which_none_can_take_over_nor_two_within_half_an_hour() -> None:
    alone = several_nodes("a", "b", "c", "d", on_outlier="evict")
    assert not of(EndAttempt, stays(alone, "b", *LANES)) and not alone.state.evicted
    story = job(on_outlier="evict", max_evict_share=1.0)
    story.joins("another")
    stays(story, "b", *LANES)
    all_end(story)
    story.starts()
    assert not of(EndAttempt, stays(story, "c", *LANES, after_s=600.0)), "that looks like something they share"
    assert set(story.state.evicted) == {"b"}


def test_the_journal_leads_to_the_same_state() -> None:
    story = job(on_outlier="evict")
    stays(story, "b", *LANES)
    assert replay(story.policy, story.told).evicted == story.state.evicted
