"""The table, row by row: an event of that name, as often as the row asks for, leads to the row's rung and not before."""

from __future__ import annotations

import pytest

from robust_run.health.rules.deciding import decide, rule_of
from robust_run.health.rules.table import DEFAULTS
from robust_run.health.rules.types import Book, Counts, HealthRule, RuleDecision
from robust_run.health.sensors.every import sensors_of
from robust_run.health.sensors.settings import SensorSettings
from robust_run.health.sensors.types import Event, SensorWorld
from robust_run.health.signs.xids import LOST, XIDS

BOOK = Book(rules=DEFAULTS)


def alert(name: str, kind: str = "alert") -> Event:
    return Event(name=name, kind=kind, subject="it", detail="went wrong", at_s=0.0)  # type: ignore[arg-type]


def decided(*moments: tuple[float, str], node: str = "n1") -> list[RuleDecision]:
    counts: Counts = {}
    found = []
    for now_s, name in moments:
        counts, decision = decide(BOOK, counts, node, alert(name), now_s)
        found += [decision] if decision is not None else []
    return found


@pytest.mark.parametrize(("name", "rule"), DEFAULTS.items(), ids=list(DEFAULTS))
def test_each_row_leads_to_its_rung_when_its_count_is_reached(name: str, rule: HealthRule) -> None:
    apart_s = rule.within_s / (rule.count + 1)
    decisions = decided(*[(turn * apart_s, name) for turn in range(rule.count)])
    assert [decision.tolerated for decision in decisions] == [True] * (rule.count - 1) + [False]
    last = decisions[-1]
    assert (last.rung, last.rule, last.confidence) == (rule.rung, name, rule.confidence)
    assert all(decision.rung == "report" for decision in decisions[:-1])
    assert "on n1, it: went wrong" in last.sentence


@pytest.mark.parametrize("name", [name for name, rule in DEFAULTS.items() if rule.count > 1])
def test_alerts_too_far_apart_never_reach_a_row_s_count(name: str) -> None:
    rule = DEFAULTS[name]
    decisions = decided(*[(turn * (rule.within_s + 1), name) for turn in range(5)])
    assert all(decision.tolerated for decision in decisions)


def test_every_row_says_where_it_comes_from() -> None:
    assert all(rule.why for rule in DEFAULTS.values())


def test_only_a_row_of_high_confidence_evicts_at_the_first_event() -> None:
    evicting = {name: rule for name, rule in DEFAULTS.items() if rule.rung == "evict" and rule.count == 1}
    assert evicting
    assert {rule.confidence for rule in evicting.values()} == {"high"}


def test_what_a_wrong_program_makes_too_never_evicts_by_itself() -> None:
    by_program = [f"gpu.xid.{number}" for number, (kind, _) in XIDS.items() if kind == "program"]
    for name in (*by_program, "worker.illegal_memory_access", "worker.cuda", "worker.nccl", "training.nan"):
        found = rule_of(BOOK, name)
        assert found is not None
        assert found[1].rung != "evict", name


def test_each_xid_of_a_broken_device_evicts() -> None:
    for number, (kind, _) in XIDS.items():
        found = rule_of(BOOK, "gpu.lost" if number in LOST else f"gpu.xid.{number}")
        assert found is not None
        assert (found[1].rung == "evict") == (kind == "device"), number


def test_an_xid_that_is_not_listed_is_reported() -> None:
    assert [(decision.rung, decision.rule) for decision in decided((0, "gpu.xid.9999"))] == [("report", "gpu.xid")]


def test_two_network_alerts_within_five_minutes_evict_of_whatever_kind() -> None:
    """ByteRobust 4.1."""
    decisions = decided((0, "network.link_flap"), (299, "network.errors"))
    assert [decision.rung for decision in decisions] == ["report", "evict"]
    assert "tolerated: 1 of 2 within 300 s" in decisions[0].sentence
    assert [decision.rung for decision in decided((0, "network.link_flap"), (301, "network.errors"))] == ["report"] * 2


def test_a_link_that_stays_down_evicts_after_half_a_minute() -> None:
    """ByteRobust, table 3: a switch is down after two consecutive alerts, 30 s apart."""
    assert [decision.rung for decision in decided((0, "network.link_down"), (30, "network.link_down"))][-1] == "evict"


def test_one_broken_cable_that_shows_in_two_counters_at_once_is_one_alert() -> None:
    decisions = decided((0, "network.link_down"), (0.2, "network.errors"))
    assert [decision.tolerated for decision in decisions] == [True, True]


def test_a_count_begins_anew_once_it_was_reached() -> None:
    rungs = [decision.rung for decision in decided(*[(10.0 * turn, "network.link_flap") for turn in range(4)])]
    assert rungs == ["report", "evict", "report", "evict"]


def test_nodes_are_counted_apart() -> None:
    counts, first = decide(BOOK, {}, "n1", alert("network.link_down"), 0.0)
    _, second = decide(BOOK, counts, "n2", alert("network.link_down"), 30.0)
    assert first is not None
    assert second is not None
    assert first.tolerated
    assert second.tolerated


@pytest.mark.parametrize("kind", ["clear", "note"])
def test_what_is_over_or_only_a_note_leads_to_nothing(kind: str) -> None:
    assert decide(BOOK, {}, "n1", alert("gpu.lost", kind), 0.0) == ({}, None)


def test_an_event_without_a_row_leads_to_nothing() -> None:
    assert decide(BOOK, {}, "n1", alert("weather.rain"), 0.0) == ({}, None)


def test_a_row_that_is_switched_off_leads_to_nothing() -> None:
    off = Book(rules={**DEFAULTS, "gpu.lost": HealthRule(confidence="high", rung="evict", on=False)})
    assert decide(off, {}, "n1", alert("gpu.lost"), 0.0) == ({}, None)


def test_every_sensor_that_may_hang_has_a_row_for_it_or_for_its_family() -> None:
    world = SensorWorld(folders=("/",), stores=("/",))
    names = {sensor.name for sensor in sensors_of(SensorSettings(), world)} | {"mount"}
    never = {"kernel_log", "infiniband", "traffic", "pressure", "neighbours"}  # read /proc and /sys, which do not hang
    missing = {name for name in names - never if rule_of(BOOK, f"{name}.hung") is None}
    assert missing == set()
