"""The order of tests where several processes share them: what takes long begins first, so that nobody waits for it at the end.

pytest-xdist gives each process an equal share of consecutive tests; who is done takes from the end of another's. So each share
begins with what is costly, dealt out so that all have about as much of it, and ends with what is cheap. Tests of clusters and
hosts wait more than they compute, those of jobs compute: every other share begins with some jobs, so that not all wait at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

COST_S = {"": 0.1, "torch": 1.0, "browser": 1.5, "job": 4.0, "hosts": 10.0, "cluster": 15.0, "frameworks": 25.0}
"""About what a test of a tier takes."""
LONG_S = 60.0
LONG = frozenset(
    """
    tracer/sight/test_collect.py::test_a_rank_that_gets_no_cpu_is_not_taken_for_one_that_sleeps
    launcher/core/test_job_property.py::test_all_ranks_of_an_attempt_start_from_one_point_whatever_happens
    launcher/many/test_hangs.py::test_a_controller_that_is_killed_while_ranks_stand_still_hears_from_the_nodes_when_they_go_on
    launcher/many/test_memory_flush_nodes.py::test_a_node_that_goes_away_at_the_end_of_a_job_is_not_waited_for_for_ever
    launcher/startup/test_startup_jobs.py::test_a_warm_restart_imports_next_to_nothing
    launcher/many/test_hangs.py::test_the_node_of_a_stuck_rank_is_evicted_and_the_standby_takes_its_place
    launcher/images/test_image_jobs.py::test_where_a_damaged_block_cannot_be_fetched_again_the_cache_is_in_the_cause
    launcher/watching/test_tracing.py::test_the_stuck_rank_is_named_and_has_as_long_as_it_is_given
    launcher/watching/test_tracing.py::test_ranks_that_come_one_after_the_other_are_left_alone_as_long_as_torch_waits_for_each
    store/test_hdfs.py::test_a_datanode_that_dies_while_a_file_is_written_costs_nothing
    health/checks/test_fleet.py::test_a_node_that_stands_still_is_told_from_those_that_wait_for_it
    launcher/many/test_over_eviction.py::test_of_a_pipeline_that_stands_still_as_many_machines_go_as_standbys_cover_and_the_rest_goes_on
    launcher/many/test_code_updates.py::test_nodes_go_back_together_from_whatever_is_bad
    launcher/many/test_training_heals.py::test_a_power_loss_does_not_change_a_bit_of_the_weights
    faults/test_memory_cuts.py::test_a_step_is_made_again_where_a_copy_is_left_and_storage_is_gone_back_to_where_none_is
    launcher/warm/test_libraries.py::test_torch_compiles_with_backward
    """.split()
)
"""Tests that take half a minute or more, by file below tests/ and function."""


@dataclass(frozen=True)
class Test:
    """What is known of a test: its place in the order of before, its file and function, and its tier, empty if it has none."""

    place: int
    file: str
    function: str
    tier: str

    __test__ = False

    @property
    def cost_s(self) -> float:
        """About how long it takes."""
        return LONG_S if f"{self.file}::{self.function}" in LONG else COST_S[self.tier]


def dealt(tests: Sequence[Test], shares: int) -> list[int]:
    """Return the places of tests in the order in which to share them: as many equal shares, each with the costly first.

    Tests of a file stay together as long as they cost the same: they may share a cluster.
    """
    costly = sorted((test for test in tests if test.cost_s >= COST_S["job"]), key=lambda test: -test.cost_s)
    cheap = sorted((test for test in tests if test.cost_s < COST_S["job"]), key=lambda test: -test.cost_s)
    waiting: list[list[list[int]]] = [[] for _ in range(shares)]
    computing: list[list[list[int]]] = [[] for _ in range(shares)]
    took_s = [0.0] * shares
    for (_, cost_s), group in groupby(costly, key=lambda test: (test.file, test.cost_s)):
        for unit in [[test] for test in group] if cost_s == LONG_S else [list(group)]:
            least = took_s.index(min(took_s))
            (waiting if cost_s > COST_S["job"] else computing)[least].append([test.place for test in unit])
            took_s[least] += cost_s * len(unit)
    left = [test.place for test in cheap]
    hands = [woven(*units, first=number % 2 == 1) for number, units in enumerate(zip(waiting, computing, strict=True))]
    for number, hand in enumerate(hands):
        size = (len(tests) - sum(map(len, hands[:number]))) // (shares - number)
        wanted = max(0, size - len(hand))
        hand += left[:wanted]
        del left[:wanted]
    return [place for hand in hands for place in hand] + left


def woven(waiting: Sequence[list[int]], computing: Sequence[list[int]], *, first: bool) -> list[int]:
    """Return what waits and then what computes, or, with `first`, half of what computes before it."""
    half = len(computing) // 2 if first else 0
    return [place for unit in (*computing[:half], *waiting, *computing[half:]) for place in unit]
