"""What lasts, and what may follow from it. Most of what sets a node apart is no fault of it: that comes first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from robust_run.health.outliers.acting import rung_of, weight_of
from robust_run.health.outliers.standing import Standings, heard, named
from robust_run.health.outliers.types import OutlierVerdict

STAYS_S = 300.0


def verdict(machine: str = "b", state: str = "new", **more: object) -> OutlierVerdict:
    told: dict[str, object] = {
        "machine": machine, "role": "", "metric": "gpu_sm_clock_mhz", "direction": "below", "since_s": 0.0, "at_s": 20.0,
        "confidence": 0.9, "spreads": 9.0, "value": 1200.0, "peers": 1980.0, "state": state, **more,
    }  # fmt: skip
    return OutlierVerdict(**told)  # type: ignore[arg-type]


def lives(
    seconds: int,
    *,
    standings: Standings | None = None,
    nodes: int = 8,
    steps: Callable[[int], bool] = lambda _: True,
    beats: Callable[[int], bool] = lambda _: True,
    confirms: bool = True,
) -> list[int]:
    """Return at which seconds it is said that the node stays apart, which was named at 0."""
    standings = named({}, verdict(), 0.0) if standings is None else standings
    said = []
    for second in range(1, seconds):
        if confirms and second % 30 == 0:
            standings = named(standings, verdict(state="still"), float(second))
        if beats(second):
            standings, again = heard(
                standings, "b", float(second), nodes=nodes, makes_steps=steps(second), stays_s=STAYS_S
            )
            said += [second] if again is not None else []
    return said


def test_who_stays_apart_while_the_job_makes_steps_is_told_once() -> None:
    assert lives(1000) == [300]


def test_while_one_node_evaluates_or_saves_alone_no_time_passes() -> None:
    """Twenty minutes in which the others wait; they count again when steps are made."""
    assert lives(1500, steps=lambda second: not 10 <= second < 1210) == []
    assert lives(1600, steps=lambda second: not 10 <= second < 1210) == [1500]
    assert lives(1200, steps=lambda _: False) == []


def test_a_node_that_is_not_heard_stays_nothing_but_unheard() -> None:
    assert lives(600, beats=lambda second: second % 60 == 0) == [], "ten signs of life stand for 5 s each"


def test_a_comparing_that_begins_anew_or_stands_still_says_nothing_of_who_was_named_before() -> None:
    assert lives(2000, confirms=False) == []


def test_what_many_nodes_show_at_once_is_not_one_node_s() -> None:
    both = named(named({}, verdict("b"), 0.0), verdict("c"), 0.0)
    assert lives(1000, standings=both) == []
    assert lives(1000, standings=both, nodes=40) == [300], "two of forty may be"


def test_who_is_like_its_peers_again_begins_anew() -> None:
    standings = named({}, verdict(), 0.0)
    standings, _ = heard(standings, "b", 5.0, nodes=8, makes_steps=True, stays_s=STAYS_S)
    assert named(standings, verdict(state="over"), 6.0) == {}
    assert named({}, verdict(state="still"), 6.0) == {}, "nobody has named it"
    assert named(standings, verdict(), 7.0)["b"].stood_s == 0.0


def test_the_newest_readings_are_told() -> None:
    standings = named(named({}, verdict(), 0.0), verdict(state="still", value=900.0), 60.0)
    _, again = heard(standings, "b", 61.0, nodes=8, makes_steps=True, stays_s=1.0)
    assert again is not None and again.value == 900.0


HARMLESS = [
    ("cpu_percent", 60.0, 30.0, "rank 0's node logs and evaluates"),
    ("memory_used_percent", 80.0, 50.0, "it keeps an archive"),
    ("disk_bytes_per_s", 1e9, 1e6, "it writes the checkpoint"),
    ("rdma_bytes_per_s", 2e10, 1e10, "it sends to the store"),
    ("gpu_power_watts", 400.0, 600.0, "its experts or its data have less to do"),
    ("gpu_busy_percent", 50.0, 100.0, "its rank waits for a rank that is slow"),
    ("gpu_celsius", 84.0, 66.0, "it stands at the warm end of the row"),
    ("gpu_sm_clock_mhz", 1850.0, 1980.0, "a cap on power, under more load"),
    ("gpu_sm_clock_mhz", 1980.0, 1500.0, "it is its peers that are slow"),
    ("rdma_congestion_per_s", 1e5, 10.0, "the network is crowded where it is"),
    ("rdma_wait_per_s", 1e6, 10.0, "likewise"),
    ("pfc_tx_packets_per_s", 1e5, 0.0, "many peers send to it at once"),
    ("loader_wait_s", 2.0, 0.0, "its data lie elsewhere"),
    ("gpu_memory_percent", 95.0, 60.0, "longer sequences"),
    ("no_such_metric", 1.0, 100.0, "nobody knows what it is"),
]


@pytest.mark.parametrize(("metric", "value", "peers", "why"), HARMLESS, ids=[each[3] for each in HARMLESS])
def test_nothing_is_done_about_what_work_alone_may_make(metric: str, value: float, peers: float, why: str) -> None:
    assert [rung_of(asked, metric, value, peers) for asked in ("report", "diagnose", "evict")] == ["report"] * 3, why


def test_without_figures_nothing_is_done() -> None:
    assert rung_of("evict", "gpu_pcie_lanes", None, 16.0) == rung_of("evict", "gpu_pcie_lanes", 8.0, None) == "report"


def test_a_sign_of_a_part_of_the_node_is_certain_and_others_have_it_checked() -> None:
    assert weight_of("gpu_pcie_lanes", 8.0, 16.0) == weight_of("gpu_sm_clock_mhz", 1200.0, 1980.0) == "certain"
    assert weight_of("cpu_throttled_percent", 60.0, 0.0) == "doubtful"
    assert weight_of("rdma_retries_per_s", 1000.0, 0.0) == "doubtful", "so do the healthy peers of a bad receiver"
    for asked, certain, doubtful in (
        ("report", "report", "report"),
        ("diagnose", "diagnose", "diagnose"),
        ("evict", "evict", "diagnose"),
    ):
        assert rung_of(asked, "gpu_pcie_lanes", 8.0, 16.0) == certain
        assert rung_of(asked, "disk_wait_ms", 200.0, 2.0) == doubtful
