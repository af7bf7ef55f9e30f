"""Which way a worker starts, and what is said of it."""

from __future__ import annotations

import pytest

from robust_run.launcher.agent.warm.ladder import UNREADY, StartSituation, choose


def situation(**more: object) -> StartSituation:
    return StartSituation(**{"attempt": 1, "warm_state": "ready", "has_standby": True, **more})  # type: ignore[arg-type]


def test_a_worker_that_waits_with_all_that_it_needs_is_promoted_without_a_word() -> None:
    assert (choose(situation()).rung, choose(situation()).reason) == ("promote", "")


@pytest.mark.parametrize("more", [{"warm_state": "importing"}, {"is_behind": True}])
def test_one_that_will_import_again_what_the_program_imports_is_promoted_and_that_is_said(
    more: dict[str, object],
) -> None:
    assert (choose(situation(**more)).rung, choose(situation(**more)).reason) == ("promote", UNREADY)


def test_nothing_is_said_of_a_first_attempt() -> None:
    assert choose(situation(attempt=0, warm_state="importing")).reason == ""


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"has_standby": False, "warm_state": "importing"}, "the warm process was still importing"),
        ({"off": "--no-warm"}, "--no-warm"),
        ({"doubted": "it crashed"}, "it crashed"),
        ({"differs": ("HF_HOME",)}, "read at import and different for this worker: HF_HOME"),
    ],
)
def test_others_are_started_from_nothing_for_a_reason(more: dict[str, object], reason: str) -> None:
    assert (choose(situation(**more)).rung, choose(situation(**more)).reason) == ("spawn", reason)
