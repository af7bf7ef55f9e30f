"""The page, the lines and the figures of a fleet: nothing of a job is obeyed, and all of it fits."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import pytest
from fleet_made import BEGIN_S, DAY_S, Planted, fleet, incident, name_of, run
from page_ground import HOSTILE, assert_harmless, assert_they_draw_without_errors_and_fit
from prometheus_client.parser import text_string_to_metric_families

from robust_run.fleet.gauges import MOST_LEMONS, families
from robust_run.fleet.page import fleet_html
from robust_run.fleet.results import Fleet, Skipped
from robust_run.fleet.show import lines_of, percent
from robust_run.fleet.totals import fold
from robust_run.fleet.words import CodeFacts, RunFacts, StartFacts
from robust_run.report.metrics import exposition

LONG = "a_name_without_any_place_to_break_it_that_goes_on_and_on_and_on_and_on_and_on_and_on_and_on"
LEMONS = {name_of(node): 240.0 for node in (7, 31)}


def named(name: str) -> list[RunFacts]:
    """A job whose every name is this."""
    struck = [incident(i, BEGIN_S + i * DAY_S, nodes=(name,), trouble="ecc", evicted=(name,)) for i in range(12)]
    nodes = {f"n{i}": 60 * DAY_S for i in range(12)} | {name: 60 * DAY_S}
    starts = (StartFacts(attempt=0, at_s=BEGIN_S, nodes=20000, ready_s=1e6, first_step_s=2e6),)
    code = (CodeFacts(version=name, failed=3, rolled_back=True),)
    return [
        run(name, name=name, place=f"/runs/{name}", until_s=BEGIN_S + 60 * DAY_S, ettr=0.9, gpus=160_000, nodes=20_000,
            node_s=nodes, incidents=tuple(struck), starts=starts, code=code, state="live")
    ]  # fmt: skip


def seen(runs: list[RunFacts], folder: str = "/runs") -> Fleet:
    skipped = (Skipped(why="no journal", count=1200), Skipped(why="newer version", count=1))
    return msgspec.structs.replace(fold(runs), at_unix_s=BEGIN_S + 100 * DAY_S, folders=(folder,), skipped=skipped)


FLEETS = {
    "fleet": lambda: seen(fleet(Planted(lemons=LEMONS, runs=250), 1)),
    "small": lambda: seen([run(node_s={"n": 60.0}, incidents=(incident(),))]),
    "nothing-happened": lambda: seen([run(node_s={"n": DAY_S})]),
    "left-out": lambda: seen([]),
    "wordy": lambda: seen(named(LONG), f"/{LONG}/{LONG}"),
    "hostile": lambda: seen(named(HOSTILE), HOSTILE),
}


@functools.cache
def made(name: str) -> Fleet:
    return FLEETS[name]()


def test_pages_draw_without_errors_and_fit(tmp_path: Path) -> None:
    links = {"/runs/job": "job/report.html"}
    pages = {name: fleet_html(made(name), "robust fleet /runs --html x.html", links, every_s=30.0) for name in FLEETS}
    assert_they_draw_without_errors_and_fit(tmp_path, pages)


@pytest.mark.parametrize("name", FLEETS)
def test_the_page_has_no_element_that_is_not_ours(name: str) -> None:
    assert_harmless(fleet_html(made(name), "robust fleet /runs --html x.html"))


@pytest.mark.parametrize("name", FLEETS)
def test_lines_fit_100_columns_and_a_terminal_obeys_none(name: str) -> None:
    for line in lines_of(made(name)):
        assert len(line) <= 100, line
        assert line.isprintable()


def test_the_answer_is_in_the_first_lines() -> None:
    found = made("fleet")
    first = [*lines_of(found)][:8]
    assert first[0].startswith("fleet      250 runs: ")
    assert first[1].startswith(f"ETTR       {percent(found.ettr or 0.0)} of the time")
    assert " stopped training, " in first[3]
    assert "per 1,000 node-days" in first[3]
    assert {line.split(":")[0].split()[-1] for line in first[4:6]} == set(LEMONS)
    assert first[6] == "left out   1,201 directories: 1,200 no journal, 1 newer version"


def test_a_run_has_a_link_to_its_own_page_where_it_has_one() -> None:
    told = [run("with", place="/runs/with"), run("without", place="/runs/without")]
    html = fleet_html(seen(told), "robust fleet", {"/runs/with": "with/report.html"})
    assert '<a href="with/report.html">with</a>' in html
    assert html.count("report.html") == 1


def test_a_page_that_is_written_anew_is_loaded_anew() -> None:
    found = made("small")
    assert '<meta http-equiv=refresh content="30">' in fleet_html(found, "robust fleet", every_s=30.0)
    assert "http-equiv=refresh" not in fleet_html(found, "robust fleet")


def figures(found: Fleet) -> dict[str, dict[tuple[str, ...], float]]:
    body = exposition(families(found))[0].decode()
    return {
        family.name: {tuple(each.labels.values()): each.value for each in family.samples}
        for family in text_string_to_metric_families(body)
    }


def test_prometheus_reads_what_the_fleet_is() -> None:
    found = made("fleet")
    said = figures(found)
    assert said["robust_run_fleet_runs"][("done",)] == found.by_state["done"]
    assert said["robust_run_fleet_ettr_ratio"][()] == pytest.approx(found.ettr)
    assert said["robust_run_fleet_incidents"][("hang",)] == found.by_kind["hang"].incidents
    assert said["robust_run_fleet_failures_per_node_day"][("machine_faults",)] == pytest.approx(
        found.rates["machine faults"].per_1000 / 1000.0
    )
    assert said["robust_run_fleet_lemon_failures"].keys() == {(each,) for each in LEMONS}
    assert said["robust_run_fleet_left_out_directories"][()] == 1201.0


def test_lines_of_a_family_do_not_come_and_go() -> None:
    full, empty = figures(made("fleet")), figures(made("left-out"))
    assert full.keys() == empty.keys()
    for name in ("runs", "incidents", "component_incidents", "action_incidents", "lost_seconds"):
        assert full[f"robust_run_fleet_{name}"].keys() == empty[f"robust_run_fleet_{name}"].keys()


def test_however_many_nodes_are_lemons_twenty_are_named() -> None:
    nodes = {f"n{i}": 60 * DAY_S for i in range(1000)}
    struck = [incident(j, BEGIN_S + j * DAY_S, nodes=(f"n{i}",), trouble="ecc") for i in range(40) for j in range(10)]
    said = figures(seen([run(until_s=BEGIN_S + 60 * DAY_S, node_s=nodes, incidents=tuple(struck))]))
    assert said["robust_run_fleet_lemon_nodes"][()] == 40
    assert len(said["robust_run_fleet_lemon_failures"]) == MOST_LEMONS
