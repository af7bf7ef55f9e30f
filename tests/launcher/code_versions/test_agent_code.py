"""What an agent reports of a version: steps prove it; living alone does only where there are none to be made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from robust_run.launcher.agent.code import AgentCode
from robust_run.launcher.agent.code_versions.node_code import Survival
from robust_run.launcher.model.code_events import CodeUse, StepsSurvived

PROBATION_STEPS, PROGRESS_AFTER_S = 20, 600.0


class Place:
    """A node, as far as versions need one: one attempt at a time, whose steps and age a test sets."""

    def __init__(self, *, on_probation: bool = True, makes_steps: bool = False) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.reports: list[Any] = []
        use = CodeUse(number=2, tree="a" * 64, on_probation=on_probation, makes_steps=makes_steps)
        self.code = SimpleNamespace(
            ground=SimpleNamespace(use=use), survival=lambda _number, _ranks: Survival(self.steps, 0.1, None)
        )
        self.spec = SimpleNamespace(probation_steps=PROBATION_STEPS, progress_after_s=PROGRESS_AFTER_S)
        self.clock = SimpleNamespace(monotonic_s=lambda: self.now_s)
        self._agent = AgentCode(self, "n", self.reports.append, lambda _: False)  # type: ignore[arg-type]

    def is_proven(self, steps: int, age_s: float, attempt: int = 0) -> bool:
        self.steps, self.now_s = steps, age_s
        self._agent.look(SimpleNamespace(number=attempt, is_ending=False, workers=[], started_at_s=0.0))  # type: ignore[arg-type]
        return any(isinstance(each, StepsSurvived) and each.attempt == attempt for each in self.reports)


def test_steps_prove_a_version() -> None:
    place = Place()
    assert not place.is_proven(PROBATION_STEPS - 1, 10.0)
    assert place.is_proven(PROBATION_STEPS, 11.0)


def test_living_proves_a_version_where_nobody_ever_made_steps() -> None:
    place = Place()
    assert not place.is_proven(0, PROGRESS_AFTER_S - 1)
    assert place.is_proven(0, PROGRESS_AFTER_S)


@pytest.mark.parametrize("steps", [0, 3])
def test_living_proves_nothing_where_the_trusted_version_makes_steps(steps: int) -> None:
    place = Place(makes_steps=True)
    assert not place.is_proven(steps, 10 * PROGRESS_AFTER_S), "it may have an optimizer yet to come"
    assert place.is_proven(PROBATION_STEPS, 10 * PROGRESS_AFTER_S)


def test_from_its_first_step_on_a_version_must_make_them_all() -> None:
    place = Place()
    assert not place.is_proven(1, PROGRESS_AFTER_S - 1)
    assert not place.is_proven(1, 2 * PROGRESS_AFTER_S)
    assert not place.is_proven(0, 2 * PROGRESS_AFTER_S, attempt=1), "nor need the next attempt have made one yet"


def test_what_is_trusted_reports_steps_alone_however_late_they_come() -> None:
    place = Place(on_probation=False)
    assert not place.is_proven(0, 2 * PROGRESS_AFTER_S)
    assert place.is_proven(PROBATION_STEPS, 3 * PROGRESS_AFTER_S)
