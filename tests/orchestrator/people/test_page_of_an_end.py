"""The page of a job that is over, when it cannot be drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from robust_run.orchestrator.main import draw_page


def test_a_package_that_was_replaced_while_the_job_ran_costs_the_page_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "robust_run.orchestrator.people.pages", None)
    draw_page(str(tmp_path))
    assert "the page of the job cannot be drawn: " in capsys.readouterr().err
