"""On call, woken by an incident: its first screen says what happened, whose fault it is, what was done, and whether to act."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from page_ground import BEGIN_S, DONE, RUNS, attempt, incident, incident_page

from robust_run.report.effective import Standstill
from robust_run.report.pages.incident.answers import parted_sentence
from robust_run.report.pages.incident.page import incident_html
from robust_run.report.pages.next_steps import need_of
from robust_run.report.pages.types import Drawn
from robust_run.report.types import Action

REPORT = {"action": Action(name="report"), "resumed_s": None}
GONE = Drawn(at_s=BEGIN_S + 200.0, life="gone", note="its controller is gone")
UNKNOWN = Drawn(at_s=BEGIN_S + 200.0, life="unknown", note="it ran on gpu-9")


def struck(end_s: float | None) -> Any:
    end_s = end_s if end_s is None else BEGIN_S + end_s
    return attempt(0, 0.0, started_s=1.0, first_step_s=10.0, standstills=(Standstill(BEGIN_S + 100.0, end_s, 1),))


@pytest.mark.parametrize(
    ("happened", "more", "said", "tone"),
    [
        ({}, {}, "Nothing at once: training went on 12.0 s after the onset.", "good"),
        ({}, {"incidents": 4}, "Not here: training went on 12.0 s after the onset. Incident 4 is the newest.", "warn"),
        ({"action": Action(name="stop"), "resumed_s": None}, {}, "The job is over, and does not start again by itself.", "bad"),
        ({"resumed_s": None}, {"drawn": DONE}, "The job is over.", "warn"),
        ({"resumed_s": None}, {"drawn": GONE}, "Nothing controls the job any more: its controller is gone.", "bad"),
        ({"resumed_s": None}, {"drawn": UNKNOWN}, "It is not known here whether the job goes on: it ran on gpu-9.", "bad"),
        (
            {"resumed_s": None},
            {"drawn": RUNS, "following": None},
            "Wait: the job is being healed, and does not train yet.",
            "warn",
        ),
        ({"resumed_s": None}, {"drawn": RUNS}, "Wait: its workers are up again, and no step has been seen yet.", "warn"),
        (
            REPORT,
            {"drawn": RUNS, "following": None, "attempt": struck(None)},
            "Act now: no rank trains, and nothing was done about it so far.",
            "bad",
        ),
        (
            REPORT,
            {"drawn": RUNS, "following": None, "attempt": struck(130.0)},
            "Nothing at once: the ranks went on by themselves.",
            "good",
        ),
        (REPORT, {"drawn": RUNS, "following": None}, "", ""),
    ],
    ids=["resumed", "not the newest", "stopped", "over", "no controller", "not known", "healing", "no step yet", "hung",
         "went on", "only told"],
)  # fmt: skip
def test_whether_somebody_has_to_act(happened: dict[str, Any], more: dict[str, Any], said: str, tone: str) -> None:
    assert need_of(incident_page(incident=incident(**happened), **more)) == (said, tone)


def test_it_is_said_before_what_to_look_at() -> None:
    html = incident_html(incident_page())
    assert html.index("What to do next") < html.index("Nothing at once") < html.index("<ol class=steps>")


def test_of_a_mismatch_what_the_others_called_is_smaller() -> None:
    sentence = (
        "rank 5 called broadcast of 3 float32 from root 0 as #31 of the world (at train.py:7 <module>), "
        "where 7 others called all_reduce of 3 float32 (at train.py:8 <module>)"
    )
    page = incident_page(incident=incident(verdict={"kind": "mismatch", "sentence": sentence}))
    head, rest = parted_sentence(page)
    assert head == "rank 5 called broadcast of 3 float32 from root 0 as #31 of the world (at train.py:7 <module>)"
    assert rest == "7 others called all_reduce of 3 float32 (at train.py:8 <module>)"
    assert "others called" in incident_html(page)


def test_why_it_was_stopped_does_not_repeat_the_verdict() -> None:
    sentence = "on gpu-0, rank 0: loss is nan at step 21 (training.nan)"
    stopped = incident(
        verdict={"kind": "nan", "sentence": sentence},
        action=Action(name="stop", reason=f"known: {sentence}; no replay"),
    )
    html = incident_html(incident_page(incident=msgspec.structs.replace(stopped, resumed_s=None)))
    assert "known: the same; no replay" in html
