"""Who is called a lemon, and what looks the same and is none."""

from __future__ import annotations

import pytest
from fleet_made import BEGIN_S, DAY_S, incident, run

from robust_run.fleet.lemons import own_failures, search
from robust_run.fleet.rates import faults, node_seconds
from robust_run.fleet.results import LemonSearch
from robust_run.fleet.words import IncidentFacts, RunFacts

NODES = 40
SICK = "gpu-0001"
ECC = {"component": "gpu", "trouble": "ecc"}


def months(*incidents: IncidentFacts, name: str = "job", background: int = 10) -> RunFacts:
    """A run of 40 nodes for 90 days; some others fail once each."""
    others = [incident(i, BEGIN_S + i * DAY_S, nodes=(f"gpu-{i + 10:04d}",), **ECC) for i in range(background)]
    nodes = {f"gpu-{i:04d}": 90 * DAY_S for i in range(NODES)}
    return run(name, until_s=BEGIN_S + 90 * DAY_S, nodes=NODES, node_s=nodes, incidents=(*others, *incidents))


def row(count: int, apart_s: float = 5 * DAY_S, **more: object) -> list[IncidentFacts]:
    return [incident(100 + i, BEGIN_S + i * apart_s, **{"nodes": (SICK,), **ECC, **more}) for i in range(count)]


def looked(*runs: RunFacts) -> LemonSearch:
    return search(own_failures(runs), node_seconds(runs))


def test_a_node_that_fails_again_and_again_is_a_lemon() -> None:
    found = looked(months(*row(8)))
    [lemon] = found.lemons
    assert (lemon.node, lemon.failures, lemon.kinds) == (SICK, 8, {"crash": 8})
    assert lemon.expected == pytest.approx(10 / 39, rel=1e-6), "at the rate of the others"
    assert lemon.times == pytest.approx(8 * 39 / 10, rel=1e-6)
    assert lemon.rate.per_1000 == pytest.approx(1000 * 8 / 90)
    assert lemon.rate.low < lemon.rate.per_1000 < lemon.rate.high
    assert lemon.chance < 0.01


@pytest.mark.parametrize("trouble", ["ecc", "worker.gpu_lost", "gpu.xid.79", "check.compute"])
def test_what_sensors_and_checks_saw_counts_each_time(trouble: str) -> None:
    assert [each.node for each in looked(months(*row(8, trouble=trouble))).lemons] == [SICK]


def test_two_failures_are_chance() -> None:
    assert not looked(months(*row(2), background=0)).lemons


def test_one_fault_that_strikes_until_it_is_repaired_is_one_failure() -> None:
    assert not looked(months(*row(30, apart_s=600.0))).lemons


@pytest.mark.parametrize("component", ["program", "code", "storage"])
def test_the_node_of_a_rank_whose_program_fails_is_healthy(component: str) -> None:
    assert not looked(months(*row(15, component=component, trouble="user_exception"))).lemons


@pytest.mark.parametrize(
    "seen",
    [
        {"component": "gpu", "trouble": "cuda"},
        {"component": "gpu", "trouble": "worker.cuda"},
        {"component": "network", "trouble": "nccl"},
        {"component": "node", "trouble": "outlier.cpu_percent", "kind": "slow"},
        {"component": "unknown", "trouble": "", "kind": "hang"},
    ],
)
def test_what_a_program_may_have_done_as_well_counts_once_in_a_run(seen: dict[str, object]) -> None:
    assert not looked(months(*row(15, **seen))).lemons
    several = [months(*row(15, **seen), name=f"job-{i}", background=0) for i in range(12)]
    shifted = [
        run(
            each.run_id,
            began_s=BEGIN_S + i,
            until_s=each.until_s,
            node_s=each.node_s,
            incidents=tuple(
                incident(
                    x.number, x.at_s + i * 4 * 3600.0, x.kind, component=x.component, trouble=x.trouble, nodes=x.nodes
                )
                for x in each.incidents
            ),
        )
        for i, each in enumerate(several)
    ]
    assert [each.node for each in looked(*shifted).lemons] == [SICK], "in job after job it is the node"


def test_nodes_behind_one_switch_and_groups_of_which_one_is_guilty_are_not_named() -> None:
    together = [
        incident(100 + i, BEGIN_S + i * DAY_S, nodes=tuple(f"gpu-{n:04d}" for n in range(8))) for i in range(15)
    ]
    assert not looked(months(*together)).lemons


@pytest.mark.parametrize(
    "seen",
    [
        {"confidence": "low"},
        {"rule": "node_evicted", "component": "node"},
        {"rule": "operator", "component": "unknown", "kind": "hang"},
        {"kind": "stopped"},
        {"kind": "crash", "component": "unknown", "trouble": ""},
    ],
    ids=["a guess", "sent away by people", "an operator", "stopped", "killed by somebody"],
)
def test_what_people_did_and_what_is_guessed_does_not_count(seen: dict[str, object]) -> None:
    assert not looked(months(*row(15, **seen))).lemons


def test_a_node_of_which_no_time_is_known_is_not_judged() -> None:
    assert not looked(months(*row(15, nodes=("elsewhere",)))).lemons


def test_who_was_in_more_jobs_may_fail_more() -> None:
    nodes = {f"gpu-{i:04d}": 9 * DAY_S for i in range(NODES)} | {SICK: 900 * DAY_S}
    struck = [*row(10), *(incident(i, BEGIN_S + i * DAY_S, nodes=(f"gpu-{i + 10:04d}",), **ECC) for i in range(4))]
    assert not looked(run(until_s=BEGIN_S + 90 * DAY_S, node_s=nodes, incidents=tuple(struck))).lemons


def test_too_few_says_so() -> None:
    few = looked(months(*row(1), background=1))
    assert few.is_too_few
    assert few.needed == 3
    assert looked(run(node_s={"alone": DAY_S})).needed is None
    enough = looked(months(*row(1), background=20))
    assert not enough.is_too_few
    assert not enough.lemons


def test_all_failures_on_one_node_of_two_take_more_of_them() -> None:
    nodes = {"gpu-0001": 90 * DAY_S, "gpu-0002": 90 * DAY_S}

    def of(count: int) -> LemonSearch:
        return looked(run(until_s=BEGIN_S + 90 * DAY_S, node_s=nodes, incidents=tuple(row(count))))

    assert not of(7).lemons
    assert [each.node for each in of(8).lemons] == [SICK], "1 / 256, and two nodes were looked at"


def test_faults_that_strike_again_within_an_hour_are_one_and_those_without_a_node_are_not() -> None:
    again = row(4, apart_s=600.0)
    assert len(faults(again, lambda each: each.kind)) == 1
    nowhere = row(4, apart_s=600.0, nodes=())
    assert len(faults(nowhere, lambda each: each.kind)) == 4
    two = [again[0], incident(7, again[0].at_s + 60.0, nodes=(SICK, "gpu-0002"))]
    assert len(faults(two, lambda each: each.kind)) == 2, "another node has it, too"
