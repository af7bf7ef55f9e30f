"""docs/metrics.md, the dashboard and the alert rules say what the code says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from dashboards import ALERTS, DASHBOARD, DOCS, NAME, all_families, expressions, needs_promtool, panels, series

from robust_run.report.metrics import PREFIX


def test_the_table_has_every_metric_as_the_code_has_it() -> None:
    lines = [line for line in (DOCS / "metrics.md").read_text().splitlines() if line.startswith(f"| `{PREFIX}")]
    table = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert table == [
        (
            f"`{PREFIX}{family.name}`",
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            family.about,
        )
        for family in all_families()
    ]


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["id"] is None, "Grafana gives it one"
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(panels(dashboard)) > 15
    for panel in panels(dashboard):
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24


#: Names of units that Grafana knows (its valueFormats), as far as there is use for them here.
UNITS = {"short", "none", "percentunit", "s", "ms", "ops", "Bps", "bytes", "dateTimeFromNow", "bool_yes_no"}


def test_the_dashboard_uses_only_what_grafana_knows_and_itself_declares() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", dashboard["uid"])
    assert {each["pluginId"] for each in dashboard["__inputs"]} == {"prometheus"}
    declared = {each["id"] for each in dashboard["__requires"] if each["type"] == "panel"}
    assert declared == {panel["type"] for panel in panels(dashboard)}
    variables = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval"}
    inputs = {each["name"] for each in dashboard["__inputs"]}
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) <= variables | inputs | {"__all"}
    for panel in panels(dashboard):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters), panel["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"]), panel["title"]


def test_what_the_dashboard_groups_and_names_by_are_labels_of_the_metrics() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    labels = {f"{PREFIX}{family.name}": set(family.labels) for family in all_families()}
    counters = {f"{PREFIX}{family.name}" for family in all_families() if family.kind == "counter"}
    for panel in panels(dashboard):
        for target in panel["targets"]:
            names = [re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(target["expr"])]
            known = {"job", "instance", "le"}.union(*(labels.get(name, set()) for name in names))
            grouped = re.findall(r"\b(?:by|without) \(([^)]*)\)", target["expr"])
            used = {label.strip() for group in grouped for label in group.split(",")}
            used |= set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", "")))
            assert used <= known, panel["title"]
            for name in counters.intersection(names):
                assert re.search(rf"(rate|increase|changes)\({name}\b", target["expr"]), panel["title"]
    for variable in dashboard["templating"]["list"][1:]:
        assert NAME.findall(variable["query"]["query"])[0] in series()


@needs_promtool
def test_prometheus_can_parse_every_query_of_the_dashboard(tmp_path: Path) -> None:
    filled = [each.replace("$__rate_interval", "1m").replace("$job", ".*") for each in expressions()]
    rules = [
        {"record": f"query:{number}", "expr": each.replace("$instance", ".*")} for number, each in enumerate(filled)
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", "rules.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_panels_do_not_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_query_of_the_dashboard_asks_for_what_there_is(expression: str) -> None:
    names = set(NAME.findall(expression))
    assert names
    assert names <= series()


def test_the_alerts_ask_for_what_there_is() -> None:
    names = set(NAME.findall(ALERTS.read_text()))
    assert names
    assert names <= series()


@needs_promtool
def test_the_alerts_are_sound_and_do_what_their_tests_say() -> None:
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=ALERTS.parent, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_to_be_silent_and_to_speak() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    tested = re.findall(r"alertname: (\w+)", (ALERTS.parent / "alerts_test.yml").read_text())
    assert len(alerts) >= 8
    assert sorted(tested) == sorted([*alerts, *alerts])
