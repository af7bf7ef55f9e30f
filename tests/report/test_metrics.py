"""Families become text that Prometheus reads, whatever is in their labels."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from robust_run.report.metrics import MetricFamily, Sample, exposition, number


def read(*families: MetricFamily) -> dict[str, dict[tuple[str, ...], float]]:
    """What Prometheus makes of families: numbers by name and label values."""
    body, _ = exposition(families)
    return {
        sample.name: {tuple(of.labels.values()): of.value for of in family.samples if of.name == sample.name}
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_a_counter_and_a_gauge_are_told_apart():
    families = [number("restarts_total", "counter", "Restarts.", 3), number("ranks", "gauge", "Ranks.", 8)]
    text = exposition(families)[0].decode()
    assert "# TYPE robust_run_restarts_total counter\nrobust_run_restarts_total 3.0\n" in text
    assert "# HELP robust_run_ranks Ranks.\n# TYPE robust_run_ranks gauge\nrobust_run_ranks 8.0\n" in text
    assert "_created" not in text


def test_the_format_is_the_one_that_is_asked_for():
    family = number("ranks", "gauge", "Ranks.", 8)
    plain, plain_type = exposition([family], "")
    open_, open_type = exposition([family], "application/openmetrics-text; version=1.0.0")
    assert plain_type.startswith("text/plain")
    assert open_type.startswith("application/openmetrics-text")
    assert open_.endswith(b"# EOF\n")
    assert not plain.endswith(b"# EOF\n")


@given(st.text(st.characters(codec="utf-8")), st.floats(0, 1e18))
def test_labels_may_hold_anything(text: str, value: float):
    family = MetricFamily(name="x_total", kind="counter", about="X.", labels=("of",), samples=(Sample((text,), value),))
    body, _ = exposition([family])
    (line,) = [line for line in body.decode().split("\n") if line.startswith("robust_run_x_total{")]
    assert line.endswith(f"}} {value!r}") or float(line.rpartition(" ")[2]) == value


def test_what_was_said_is_what_is_read():
    family = MetricFamily(
        name="nccl_sent_bytes_total",
        kind="counter",
        about="Bytes.",
        labels=("communicator",),
        samples=(Sample(("dp_1",), 5), Sample(('a "b"\\\nc',), 7)),
    )
    assert read(family)["robust_run_nccl_sent_bytes_total"] == {("dp_1",): 5.0, ('a "b"\\\nc',): 7.0}


@pytest.mark.parametrize("module", ["robust_run.report.metrics", "robust_run.launcher.operator.gauges"])
def test_nothing_heavy_is_imported_before_somebody_asks(module: str):
    code = f"import sys, {module}; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
