"""docs/metrics.md, the dashboard and the alert rules say what the code says."""

from __future__ import annotations

import json
import re
import subprocess

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
