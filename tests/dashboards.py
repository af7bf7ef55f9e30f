"""What docs/ says of metrics, for tests: the dashboard's queries, and which names there are."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from robust_run.launcher.operator.gauges import SOURCES, GaugeFacts
from robust_run.launcher.operator.views.status_types import JobView
from robust_run.report.metrics import PREFIX, MetricFamily

DOCS = Path(__file__).parents[1] / "docs"
DASHBOARD = DOCS / "grafana" / "robust-run.json"
ALERTS = DOCS / "grafana" / "alerts.yml"
NAME = re.compile(rf"\b{PREFIX}\w+")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")


def all_families() -> list[MetricFamily]:
    return [source(GaugeFacts(job=job_view())) for source in SOURCES]


def series() -> set[str]:
    """Every name that a query may use."""
    names = set()
    for family in all_families():
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        names |= {f"{PREFIX}{family.name}{suffix}" for suffix in suffixes}
    return names


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["expr"]


def job_view() -> JobView:
    """A job of 10,000 ranks that runs."""
    return JobView(
        run_id="run",
        script="train.py",
        alive=True,
        phase="running",
        attempt=0,
        term=1,
        restarts=0,
        world_size=10_000,
        nodes_needed=1,
        nodes_wanted=1,
        nodes_active=1,
        nodes_standby=0,
        nodes_evicted=0,
        nodes_lost=0,
        started_unix_s=1.0,
        now_unix_s=2.0,
        host="h",
        pid=1,
        version="0.1.0",
        run_directory="",
    )
