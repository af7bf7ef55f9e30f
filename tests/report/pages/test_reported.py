"""What a script reports of its training: small pictures of its newest reports, whatever it reports."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_ground import HOSTILE, assert_harmless, job_page

from robust_run.health.metrics.reporting import Reporter
from robust_run.health.metrics.reports import file_of
from robust_run.launcher.operator.pages.page_reading import series_in
from robust_run.report.pages.job_page import job_html
from robust_run.report.pages.reported import MOST_SERIES, reported
from robust_run.report.pages.types import ReportedSeries


def test_each_series_has_a_picture_and_its_newest_value() -> None:
    html = reported((ReportedSeries(name="loss", values=(3.0, 2.0, 2.5), step=1200),), rank=0)
    assert "<strong>2.5</strong>" in html
    assert "step 1\u202f200" in html
    assert "loss: from 2 to 3, 3 reports" in html
    assert re.search(r'd="M0.0 6.0L150.0 76.0L300.0 41.0"', html)


def test_a_loss_that_is_no_number_leaves_a_gap_and_is_said() -> None:
    html = reported((ReportedSeries(name="loss", values=(3.0, math.nan, 2.0, math.inf)),), rank=0)
    assert "<strong class=bad>inf</strong>" in html
    assert "2 of them no number" in html
    assert html.count("M0.0") + html.count("M200.0") == 2
    assert "no report is a number" in reported((ReportedSeries(name="x", values=(math.nan,)),), rank=0)


def test_where_nothing_is_reported_there_is_nothing() -> None:
    assert reported((), rank=0) == ""
    assert "What the script reports" not in job_html(job_page())


@pytest.mark.parametrize("count", [1, 3 * MOST_SERIES])
def test_what_a_script_calls_its_figures_is_text(count: int) -> None:
    series = tuple(ReportedSeries(name=f"{HOSTILE}{at}", values=(1.0,)) for at in range(count))
    html = job_html(job_page(series=series))
    assert_harmless(html)
    assert html.count("<figure>") == min(count, MOST_SERIES)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=70))
def test_any_values_can_be_drawn(values: list[float]) -> None:
    html = reported((ReportedSeries(name="loss", values=tuple(values)),), rank=3)
    (path,) = re.findall(r' d="([^"]*)"', html)
    assert re.fullmatch(r"([ML]\d+\.\d \d+\.\d)*", path), path


def test_a_live_page_has_what_the_first_rank_here_reports(tmp_path: Path) -> None:
    folder = tmp_path / "attempt_3-reports"
    folder.mkdir()
    (folder / "rank_4.report").write_bytes(b"damaged")
    reporter = Reporter(file_of(str(folder), 5))
    for step in range(1, 4):
        reporter.write(step, {"loss": 1.0 / step, **({"grad_norm": 0.5} if step == 1 else {})})
    series, rank = series_in(str(tmp_path), 3)
    assert rank == 5
    assert [(each.name, each.step, len(each.values)) for each in series] == [("loss", 3, 3), ("grad_norm", 1, 1)]
    assert series_in(str(tmp_path), 2) == ((), 0)
