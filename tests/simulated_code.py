"""A simulated job whose code is updated while everything else happens to it (see `simulated_job`)."""

from __future__ import annotations

from typing import Any

from simulated_job import World

from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.actions import StartAttempt
from robust_run.launcher.model.code_events import (
    CodeCaptured,
    CodeLacking,
    CodeVersion,
    NotFinite,
    RollbackAsked,
    StepsSurvived,
    UpdateDue,
    UpdateStaged,
)
from robust_run.launcher.model.job import (
    Placement,
)


def version(number: int, parent: int, **more: object) -> CodeVersion:
    """Return a version that was made from another."""
    return CodeVersion(number=number, tree="a" * 64, parents=(parent,) if parent else (), **more)  # type: ignore[arg-type]


class CodeWorld(World):
    """A simulated job whose code is updated; no attempt may mix versions, or run what was taken back."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.ran: dict[int, int] = {}
        super().__init__(*arguments, **more)

    def check(self, event: Any, before: tuple[Placement, ...], actions: tuple[object, ...]) -> None:
        if isinstance(event, CodeLacking):
            self.troubled.add(event.attempt)
        super().check(event, before, actions)
        code = self.state.code
        for action in actions:
            if isinstance(action, StartAttempt) and action.code is not None:
                number = self.ran.setdefault(action.attempt, action.code.number)
                assert number == action.code.number, f"attempt {action.attempt} mixes versions"
                assert code.records[number - 1].fate in ("trusted", "probation")
        if code.records:
            assert code.records[code.running - 1].fate in ("trusted", "probation")
            assert code.records[code.trusted - 1].fate == "trusted"
            assert not code.pending or code.records[code.pending - 1].fate == "pending"
            assert [record.version.number for record in code.records] == list(range(1, len(code.records) + 1))

    def about_code(self, which: int) -> None:
        """One of the things that may happen to versions."""
        code, attempt = self.state.code, self.state.attempt
        nodes = list(self.state.places) or ["nobody"]
        made = version(len(code.records) + 1, queries.head(code), settings={"n": str(len(code.records))})
        self.tell(
            [
                UpdateStaged(version=made),
                UpdateStaged(version=made, now=True),
                UpdateStaged(version=version(len(code.records), 1)),
                UpdateDue(number=code.pending),
                RollbackAsked(to=which % 4),
                NotFinite(attempt=attempt, node=nodes[0], rank=0, step=1),
                CodeLacking(attempt=attempt, node=nodes[-1], number=code.running, message="no disk"),
                CodeCaptured(version=version(1, 0)),
            ][which % 8]
            if which < 16
            else StepsSurvived(attempt=attempt, node=nodes[which % len(nodes)], steps=9, step_s=which / 10)
        )
