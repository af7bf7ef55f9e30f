"""`robust plan --from`: known rates come back within their intervals, little data changes little, and the user's file wins."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.fleet.found import Found
from robust_run.fleet.words import CodeFacts, IncidentFacts, Lost, RunFacts, StartFacts
from robust_run.planning.faults import faults_of
from robust_run.planning.learning import PRIOR_NODE_DAYS, Figure, Learned, learned
from robust_run.planning.mix import DEFAULT, MixFile
from robust_run.planning.sights import ROWS, UNEXPLAINED, row_of, seen
from robust_run.planning.words import Plan, Times
from robust_run.report.types import VerdictKind

DAY_S = 86400.0
BEGAN_S = 1.7e9
KINDS: dict[str, VerdictKind] = {
    "crash": "crash",
    "alert": "node_fault",
    "lost": "node_lost",
    "hang": "hang",
    "slow": "slow",
    "nan": "nan",
    "bad_update": "code",
}


def incident(number: int = 1, at_s: float = BEGAN_S, **changes: object) -> IncidentFacts:
    one = IncidentFacts(number=number, at_s=at_s, symptom="", kind="crash", action="relaunch")
    return msgspec.structs.replace(one, **changes)


def run(nodes: int = 8, days: float = 10.0, **changes: object) -> RunFacts:
    one = RunFacts(
        run_id="r",
        began_s=BEGAN_S,
        until_s=BEGAN_S + days * DAY_S,
        nodes=nodes,
        node_s={f"node-{number}": days * DAY_S for number in range(nodes)},
    )
    return msgspec.structs.replace(one, **changes)


def as_facts(plan: Plan, seed: int) -> RunFacts:
    """Return what a job would keep that each fault of a plan strikes once, and says what it is."""
    incidents = [
        incident(
            fault.number,
            BEGAN_S + fault.at_s,
            kind=KINDS[fault.kind.shows],
            component="gpu",
            trouble="" if fault.kind.shows == "lost" else fault.kind.trouble,
            nodes=tuple(f"node-{number}" for number in range(fault.host, fault.host + fault.kind.nodes)),
        )
        for fault in faults_of(plan, seed)
        if fault.kind.shows != "update"
    ]
    nodes = plan.nodes + plan.standby
    return run(nodes, plan.days, incidents=tuple(incidents))


def learn(*runs: RunFacts, nodes: int = 8) -> Learned:
    return learned(Found(facts=runs), MixFile(), nodes)[1]


def figure(found: Learned, name: str) -> Figure:
    return next(each for each in found.figures if each.name == name)


def test_known_rates_come_back_within_their_intervals() -> None:
    """19 of 20 intervals hold; each is of another row and seed."""
    held = looked_at = 0
    for seed in range(4):
        plan = Plan(nodes=1000, days=60.0, mix=DEFAULT)
        found = learn(as_facts(plan, seed), nodes=1000)
        for row in ROWS:
            names = [name for name in row.faults if DEFAULT.faults[name].per_1000_node_days]
            each = next(
                (each for each in found.figures if each.name == f"faults.{'+'.join(names)}.per_1000_node_days"), None
            )
            if each is not None:
                looked_at += 1
                truth = sum(DEFAULT.faults[name].per_1000_node_days for name in names)
                held += (each.low or 0.0) <= truth <= (each.high or math.inf)
    assert looked_at >= 50 and held >= 0.9 * looked_at


def test_three_times_the_faults_are_three_times_the_rates() -> None:
    busy = {
        name: msgspec.structs.replace(kind, per_1000_node_days=3 * kind.per_1000_node_days)
        for name, kind in DEFAULT.faults.items()
    }
    plan = Plan(nodes=2000, days=90.0, mix=msgspec.structs.replace(DEFAULT, faults=busy))
    told, _ = learned(Found(facts=(as_facts(plan, 0),)), MixFile(), 2000)
    for name in ("cuda_error", "host_memory", "hang"):
        assert told.mix.faults[name].per_1000_node_days == pytest.approx(
            3 * DEFAULT.faults[name].per_1000_node_days, rel=0.25
        )


def test_kinds_that_look_the_same_keep_their_proportions() -> None:
    many = tuple(incident(number, BEGAN_S + number * DAY_S / 3, trouble="storage") for number in range(30))
    told, found = learned(Found(facts=(run(100, incidents=many),)), MixFile(), 8)
    row = figure(found, "faults.disk_space+storage+external_service.per_1000_node_days")
    assert row.count == 30
    for name in ("disk_space", "storage", "external_service"):
        share = DEFAULT.faults[name].per_1000_node_days / row.default
        assert told.mix.faults[name].per_1000_node_days == pytest.approx(row.used * share)


def test_a_folder_without_runs_changes_nothing() -> None:
    told, found = learned(Found(), MixFile(), 100)
    assert told == MixFile() and not found.figures and found.runs == 0


def test_runs_without_incidents_lower_rates_as_far_as_they_were_long() -> None:
    few, _ = learned(Found(facts=(run(8, 1.0),)), MixFile(), 8)
    usual = DEFAULT.faults["hang"].per_1000_node_days
    assert few.mix.faults["hang"].per_1000_node_days == pytest.approx(usual, rel=0.01)
    many, _ = learned(Found(facts=(run(1000, 7.5),)), MixFile(), 8)
    assert many.mix.faults["hang"].per_1000_node_days == pytest.approx(
        usual * PRIOR_NODE_DAYS / (PRIOR_NODE_DAYS + 7500)
    )
    assert few.times == Times() and few.saving == MixFile().saving


@given(count=st.integers(0, 50), days=st.floats(0.1, 1000))
def test_a_rate_lies_between_what_was_seen_and_the_default(count: int, days: float) -> None:
    many = tuple(incident(number, BEGAN_S + number * DAY_S, kind="hang") for number in range(count))
    each = figure(learn(run(8, days, incidents=many)), "faults.hang.per_1000_node_days")
    assert each.seen is not None and each.low is not None and each.high is not None
    slack = 1e-9 * max(each.seen, each.default)
    assert min(each.seen, each.default) - slack <= each.used <= max(each.seen, each.default) + slack
    assert each.low <= each.seen <= each.high


def test_a_fault_that_shows_again_on_its_node_is_one_and_another_node_s_is_another() -> None:
    again = [incident(number, BEGAN_S + number * 3600, trouble="cuda", nodes=("a",)) for number in range(5)]
    other = incident(9, BEGAN_S + 60, trouble="cuda", nodes=("b",))
    later = incident(10, BEGAN_S + 40 * 3600, trouble="cuda", nodes=("a",))
    found = seen([run(incidents=(*again, other, later))])
    assert len(found.by_row["CUDA errors"]) == 3 and found.again == 4


def test_the_same_without_a_node_in_two_jobs_is_two() -> None:
    one = incident(trouble="storage")
    assert (
        len(
            seen([run(incidents=(one, msgspec.structs.replace(one, number=2))), run(incidents=(one,))]).by_row[
                "storage"
            ]
        )
        == 2
    )


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"kind": "stopped"}, ""),
        ({"trouble": "user_exception", "component": "code"}, ""),
        ({"kind": "unknown", "rule": "operator"}, ""),
        ({"kind": "node_fault", "component": "node", "rule": "node_evicted"}, ""),
        ({"kind": "code", "trouble": "user_exception", "component": "code"}, "bad updates"),
        ({"trouble": "check.compute", "component": "gpu"}, "CUDA errors"),
        ({"trouble": "check.disk", "component": "disk"}, "disks"),
        ({"component": "program"}, ""),
        ({"kind": "hang", "action": "report"}, ""),
        ({"kind": "slow", "action": "report"}, "slow nodes"),
        ({}, UNEXPLAINED),
        ({"trouble": "network.link_down"}, "network"),
        ({"trouble": "network.link_down", "nodes": tuple("abcdefgh")}, "switches"),
        ({"trouble": "gpu.ecc"}, "GPU memory"),
        ({"trouble": "gpu.ecc.uncorrected"}, "GPU memory"),
        ({"trouble": "gpu.xid.79"}, "CUDA errors"),
        ({"kind": "node_lost", "component": "node"}, "lost nodes"),
        ({"component": "disk"}, "disks"),
        ({"trouble": "disk.read_only"}, "disks"),
        ({"kind": "code", "trouble": "cuda"}, "bad updates"),
        ({"kind": "nan"}, "wrong numbers"),
    ],
)
def test_what_an_incident_is_a_fault_of(changes: dict[str, object], row: str) -> None:
    assert row_of(msgspec.structs.replace(incident(), **changes)) == row


def test_every_kind_of_the_default_but_updates_is_in_one_row() -> None:
    named = [name for row in ROWS for name in row.faults]
    assert sorted(named) == sorted(set(DEFAULT.faults) - {"update"})


def test_what_every_kind_shows_is_found_in_its_own_row() -> None:
    for name, kind in DEFAULT.faults.items():
        if name in ("update", "bad_update"):
            continue
        nodes = tuple(f"node-{number}" for number in range(kind.nodes))
        trouble = "" if kind.shows == "lost" else kind.trouble
        found = row_of(incident(kind=KINDS[kind.shows], trouble=trouble, nodes=nodes))
        assert name in next(row.faults for row in ROWS if row.name == found), name


def test_an_outage_of_storage_is_one_fault_whatever_node_missed_it_first() -> None:
    minutes = [incident(at, BEGAN_S + at * 300.0, trouble="storage", nodes=(f"gpu-{at}",)) for at in range(6)]
    later = incident(9, BEGAN_S + 3 * DAY_S, trouble="storage", nodes=("gpu-9",))
    found = seen((run(incidents=(*minutes, later)),))
    assert (len(found.by_row["storage"]), found.again) == (2, 5)


def test_exceptions_of_the_code_that_a_run_began_with_are_no_bad_update() -> None:
    code = (CodeFacts(version="1-aa"), CodeFacts(version="2-bb"))
    own, update = (incident(at, BEGAN_S + at * DAY_S, kind="code", code=code[at].version) for at in range(2))
    found = seen((run(incidents=(own, update), code=code),))
    assert (len(found.by_row["bad updates"]), found.own) == (1, 1)


def test_what_no_row_has_is_a_kind_of_its_own() -> None:
    told, _ = learned(Found(facts=(run(1000, 7.5, incidents=(incident(),)),)), MixFile(), 8)
    assert told.mix.faults[UNEXPLAINED].per_1000_node_days == pytest.approx(1000 / (PRIOR_NODE_DAYS + 7500))


def test_the_user_s_file_wins() -> None:
    hangs = tuple(incident(number, BEGAN_S + number * DAY_S, kind="hang") for number in range(9))
    fixed = frozenset({"faults.hang.per_1000_node_days", "times.end", "lemons"})
    told, found = learned(Found(facts=(run(incidents=hangs),)), MixFile(named=fixed), 8)
    assert told.mix.faults["hang"] == DEFAULT.faults["hang"]
    assert not any(each.name in fixed for each in found.figures)


def test_of_a_row_the_file_takes_its_share() -> None:
    many = tuple(incident(number, BEGAN_S + number * DAY_S / 3, trouble="storage") for number in range(29))
    told, found = learned(
        Found(facts=(run(100, incidents=many),)), MixFile(named=frozenset({"faults.disk_space.per_1000_node_days"})), 8
    )
    assert told.mix.faults["disk_space"] == msgspec.structs.replace(
        DEFAULT.faults["disk_space"], detect=told.mix.faults["disk_space"].detect
    )
    assert figure(found, "faults.storage+external_service.per_1000_node_days").count == round(29 * 2.2 / 7.2)


def ends(seconds: float, count: int) -> tuple[IncidentFacts, ...]:
    return tuple(incident(number, BEGAN_S + number * DAY_S, lost=Lost(end=seconds)) for number in range(count))


def test_times_are_blended_from_five_on() -> None:
    assert learned(Found(facts=(run(incidents=ends(30.0, 4)),)), MixFile(), 8)[0].times.end == Times().end
    told, found = learned(Found(facts=(run(incidents=ends(30.0, 10)),)), MixFile(), 8)
    assert told.times.end.median == pytest.approx(math.sqrt(3.0 * 30.0))
    assert figure(found, "times.end").count == 10
    assert figure(learn(run(incidents=ends(30.0, 4))), "times.end").why == "fewer than 5 seen"


def test_small_jobs_do_not_make_large_ones_start_sooner() -> None:
    quick, slow = run(8, incidents=ends(0.3, 20)), run(8, incidents=ends(30.0, 20))
    assert learned(Found(facts=(quick,)), MixFile(), 32)[0].times.end.median < 1.0
    told, found = learned(Found(facts=(quick,)), MixFile(), 1200)
    assert told.times.end == Times().end and found.is_small
    assert figure(found, "times.end").why == "seen in much smaller jobs"
    assert learned(Found(facts=(slow,)), MixFile(), 1200)[0].times.end.median > 10.0


def test_starts_and_loads_are_told_apart() -> None:
    starts = (
        StartFacts(attempt=0, at_s=BEGAN_S, nodes=8, began="cold", ready_s=200.0, first_step_s=50.0),
        *(
            StartFacts(attempt=at, at_s=BEGAN_S + at, nodes=8, began="warm", ready_s=4.0, first_step_s=70.0)
            for at in range(1, 9)
        ),
    )
    loads = tuple(
        incident(
            at, BEGAN_S + at * DAY_S, source="storage" if at % 2 else "peer", lost=Lost(load=320.0 if at % 2 else 32.0)
        )
        for at in range(40)
    )
    runs = tuple(run(incidents=loads[at::8], starts=starts) for at in range(8))
    told, found = learned(Found(facts=runs), MixFile(), 8)
    assert figure(found, "times.cold_launch").seen == 200.0 and figure(found, "times.launch").seen == 4.0
    connect = told.times.connect.median
    assert figure(found, "times.connect").seen == 40.0
    assert figure(found, "times.load_storage").seen == pytest.approx(320.0 - connect)
    assert figure(found, "times.load_memory").seen == pytest.approx(max(32.0 - connect, 0.1))


def test_steps_and_saves_are_the_program_s_own() -> None:
    one = run(steps=1000, step_s=2.5, saves=50, save_every_s=600.0, blocked_s=0.4)
    told, _ = learned(Found(facts=(one,)), MixFile(), 8)
    assert (told.times.step, told.saving.every_s, told.saving.blocks_s) == (2.5, 600.0, 0.4)
    few = run(steps=5, step_s=2.5, saves=2, save_every_s=600.0, blocked_s=0.4)
    assert learned(Found(facts=(few,)), MixFile(), 8)[0] != told
    assert learned(Found(facts=(few,)), MixFile(), 8)[0].saving == MixFile().saving


def test_the_steps_of_a_small_program_are_not_those_of_a_large_one() -> None:
    toy, real = run(1, steps=1000, step_s=0.1), run(1, steps=1000, step_s=25.0)
    told, found = learned(Found(facts=(toy,)), MixFile(), 1200)
    assert told.times.step == Times().step
    assert figure(found, "times.step").why == "seen in much smaller jobs"
    assert learned(Found(facts=(real,)), MixFile(), 1200)[0].times.step == 25.0


def test_changes_of_code_are_counted_by_days_of_jobs() -> None:
    code = tuple(CodeFacts(version=str(number)) for number in range(6))
    each = figure(learn(run(1, 20.0, code=code)), "faults.update.per_day")
    assert each.count == 5 and each.used == pytest.approx((each.default * 10 + 5) / 30)


def test_lemons_are_learned_where_any_could_be_found() -> None:
    plan = Plan(nodes=400, days=200.0, mix=msgspec.structs.replace(DEFAULT, lemons=0.05, lemon_factor=40.0))
    whole = as_facts(plan, 1)
    runs = tuple(  # what a program may have done as well counts once in a run
        msgspec.structs.replace(
            run(400, 2.0),
            run_id=f"r{number}",
            incidents=tuple(each for each in whole.incidents if number == int((each.at_s - BEGAN_S) // (2 * DAY_S))),
        )
        for number in range(100)
    )
    told, found = learned(Found(facts=runs), MixFile(), 400)
    assert told.mix.lemons > DEFAULT.lemons and told.mix.lemon_factor > DEFAULT.lemon_factor
    assert figure(found, "lemons").count == 400
    assert learned(Found(facts=(run(),)), MixFile(), 8)[0].mix.lemons == DEFAULT.lemons


def test_what_was_left_out_and_what_counts_for_nothing_is_said() -> None:
    own = incident(trouble="user_exception")
    found = learned(Found(facts=(run(incidents=(own,)),), left_out={"damaged": 3}), MixFile(), 8)[1]
    assert found.left_out == "3 damaged" and found.own == 1 and found.runs == 1
