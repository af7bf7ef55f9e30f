"""Times that are none are shown as such, and end no page."""

from __future__ import annotations

import pytest
from page_ground import incident, incident_page

from robust_run.report.pages.advice import BY_KIND
from robust_run.report.pages.incident.page import incident_html
from robust_run.report.pages.next_steps import steps_for
from robust_run.report.pages.style import CSS
from robust_run.report.pages.words import clock_time, date_time, lasted, number
from robust_run.report.types import Action, Evidence


@pytest.mark.parametrize("absurd", [1e308, float("inf"), float("nan")])
def test_absurd_times(absurd: float) -> None:
    assert {lasted(absurd), clock_time(absurd), date_time(absurd), number(absurd)} == {"\N{EN DASH}"}


def test_a_loss_that_is_nan_is_no_mere_exception() -> None:
    found = incident(verdict={"kind": "nan", "rule": "user_exception"}, action=Action(name="diagnose"))
    page = incident_page(incident=found, scene=None)
    assert steps_for(page)[0].text == BY_KIND["nan"][0].text
    html = incident_html(page)
    assert "NaN or infinite values" in html and "The program raised an exception" not in html
    assert "Being diagnosed" not in html and "Nodes were checked" in html


def test_a_long_word_in_a_table_is_broken_rather_than_hiding_columns() -> None:
    assert "td{overflow-wrap:anywhere}" in CSS


def test_last_words_are_pointed_at_only_where_there_are_some() -> None:
    died = incident(verdict={"kind": "crash", "rule": "died_of_signal"}, evidence=())
    assert steps_for(incident_page(incident=died))[0].text.startswith("Look at the kernel's log on gpu-0001")
    said = incident(verdict={"kind": "crash", "rule": "died_of_signal"}, evidence=(Evidence(what="x", text="bye"),))
    assert steps_for(incident_page(incident=said))[0].text.startswith(
        "Look at its last words below and at the kernel's"
    )
