"""When a fault counts as struck: what comes late on a busy machine is no false alarm."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import Outcome, Settings, try_out
from matrix import CASES, Run

RUN = Run(next(case for case in CASES if case.number == "R12"), "dp", 4, "middle", 0)
VERDICT = {
    "kind": "hang",
    "ranks": [2],
    "nodes": [],
    "confidence": "high",
    "rule": "never_joined",
    "sentence": "it is stuck",
}


@dataclasses.dataclass
class Story:
    """A job in which a fault strikes while something is waited for, and is judged, each after so many waits."""

    plan: Any
    strikes_at: int
    judged_at: int
    run: Run = RUN
    strike: None = None
    waits: int = 0
    begun_s: float = dataclasses.field(default_factory=time.monotonic)

    def wait(self, condition: Callable[[], Any], timeout_s: float) -> bool:
        self.waits += 1
        return bool(condition())

    def fired_at_s(self) -> float | None:
        return self.begun_s + self.strikes_at if self.waits >= self.strikes_at else None

    def judged_at_s(self) -> float:
        return self.begun_s + self.judged_at

    def incident(self) -> dict[str, Any] | None:
        return {"verdict": VERDICT, "action": {"name": "report"}} if self.waits >= self.judged_at else None

    def steps(self) -> list[int]:
        return [RUN.plan("").step] * 4

    def when(self, *types: str) -> float | None:
        return None

    def ended(self) -> int | None:
        return None


def outcome_of(monkeypatch: pytest.MonkeyPatch, folder: Path, strikes_at: int, judged_at: int) -> Outcome:
    def on_one_host(_run: Run, plan: Any, _folder: Path, _settings: Settings) -> Any:
        import contextlib

        @contextlib.contextmanager
        def started() -> Iterator[Story]:
            yield Story(plan, strikes_at, judged_at)

        return started()

    monkeypatch.setattr(harness, "on_one_host", on_one_host)
    return try_out(RUN, folder, Settings())


@pytest.mark.parametrize(
    ("strikes_at", "judged_at", "early"), [(1, 2, False), (2, 2, False), (2, 1, True), (9, 1, True)]
)
def test_a_verdict_is_early_if_it_came_before_the_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strikes_at: int, judged_at: int, early: bool
) -> None:
    found = outcome_of(monkeypatch, tmp_path, strikes_at, judged_at)
    assert found.early is early
    assert found.exact is not early
    assert found.action_right is not early


def test_a_fault_that_never_struck_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = outcome_of(monkeypatch, tmp_path, 9, 9)
    assert found.problem.startswith("the fault did not strike within 90 s")
