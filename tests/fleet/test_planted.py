"""Rates that were planted are found again: within their intervals as often as these promise, lemons with few false ones."""

from __future__ import annotations

import math
import os
import random

import pytest
from fleet_made import DAY_S, Planted, few_enough, fleet, name_of, poisson

from robust_run.fleet.lemons import LEVEL, own_failures, search
from robust_run.fleet.poisson import interval
from robust_run.fleet.rates import node_seconds, rates_by
from robust_run.fleet.totals import fold

ALL = os.environ.get("TEST_EXAMPLES") == "all"
FLEETS = 60 if ALL else 20


def test_intervals_hold_the_truth_in_95_of_100_cases_whatever_the_count() -> None:
    """Of many counts: exact intervals miss in 5 % of cases at most, and not much less where counts are large."""
    rng = random.Random(1)
    for mean in (0.5, 3.0, 20.0, 200.0):
        missed, of = 0, 3000
        for _ in range(of):
            low, high = interval(poisson(rng, mean))
            missed += not low <= mean <= high
        assert missed <= few_enough(of, 0.05)
        if mean >= 20.0:
            assert missed >= 0.03 * of, "wider than they need to be"


def test_planted_rates_of_a_thousand_runs_are_within_their_intervals() -> None:
    planted = Planted()
    missed, of = 0, 0
    for seed in range(FLEETS):
        runs = fleet(planted, seed)
        assert len(runs) == 1000
        node_s = math.fsum(node_seconds(runs).values())
        found = rates_by([each for run in runs for each in run.incidents], lambda each: each.kind, node_s)
        for kind, (_, per_1000) in planted.kinds.items():
            of += 1
            missed += not found[kind].low <= per_1000 <= found[kind].high
            assert found[kind].node_days == pytest.approx(node_s / DAY_S)
    assert of == 5 * FLEETS
    assert missed <= few_enough(of, 0.05), f"{missed} of {of} intervals miss the planted rate"
    assert missed >= 1, "intervals that never miss are too wide"


def test_lemons_are_found_and_healthy_nodes_are_not_named() -> None:
    """Twelve faults per 1,000 node-days everywhere; five lemons of 200 nodes fail twenty times as often."""
    lemons = {name_of(node): 240.0 for node in (7, 31, 64, 120, 199)}
    planted = Planted(lemons=lemons)
    found_of, due, false, fleets_with_false = 0, 0, 0, 0
    for seed in range(FLEETS):
        said = fold(fleet(planted, 1000 + seed)).lemons
        named = {each.node for each in said.lemons}
        found_of += len(named & set(lemons))
        due += len(lemons)
        false += len(named - set(lemons))
        fleets_with_false += bool(named - set(lemons))
    assert found_of >= 0.95 * due, f"{found_of} of {due} lemons found"
    assert fleets_with_false <= few_enough(FLEETS, LEVEL), f"{false} healthy nodes named"


def test_where_no_node_is_a_lemon_hardly_ever_one_is_named() -> None:
    planted = Planted(runs=300)
    named, fleets = 0, 200 if ALL else 60
    for seed in range(fleets):
        runs = fleet(planted, 5000 + seed)
        named += bool(search(own_failures(runs), node_seconds(runs)).lemons)
    assert named <= few_enough(fleets, LEVEL)
