"""Versions of the code at work on one node: puts them in place for each attempt, and sees whether they survive.

Made when it is first needed, which is after the first workers of a job have been started.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from robust_run.launcher.agent.code_versions.place import CodePlace, CodeSource, seen_by_program, seen_by_tracer
from robust_run.launcher.agent.warm.identity import frozen_changes
from robust_run.launcher.model.code_events import CodeUse
from robust_run.launcher.model.job import (
    JobSpec,
)
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.tracer.files.steps import read as read_steps


class Survival:
    """What the ranks of a node have made of an attempt so far."""

    def __init__(self, steps: int, step_s: float, not_finite: tuple[int, int] | None) -> None:
        self.steps = steps
        """Of the rank that made fewest."""
        self.step_s = step_s
        """Mean time of a step, on the slowest rank; 0: not known."""
        self.not_finite = not_finite
        """A rank and the step after which its model was no numbers any more."""


class NodeCode:
    """The code of a job on this node."""

    def __init__(
        self, spec: JobSpec, env: Mapping[str, str], run_directory: RunDirectory, say: Callable[[str], None]
    ) -> None:
        user = env.get("USER") or env.get("LOGNAME") or _user_name()
        self.place = CodePlace(spec, os.getcwd(), run_directory.path, time.monotonic, socket.gethostname(), user)
        self.ground: CodeSource | None = None
        """Of the newest attempt."""
        self._spec = spec
        self._run_directory = run_directory
        self._say = say
        self._said = ""
        self._env: dict[str, str] | None = None

    def prepare(self, use: CodeUse) -> bool:
        """Put a version in place; return whether imports may have read variables that it changes.

        Raises LackingError, StoreError, CodeError.
        """
        self.ground = self.place.ground(use)
        if self.ground.copy and self.ground.copy != self._said:
            self._said = self.ground.copy
            self._say(f"code version {use.number} runs from {self._run_directory.shown(self.ground.copy)}")
        before, self._env = self._env or {}, dict(use.env)
        return bool(frozen_changes(before, self._env))

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return a worker's command line in the version that was prepared."""
        return self.place.argv(argv, self.ground) if self.ground is not None else argv

    def seen_by_program(self) -> dict[str, str]:
        """Return what the program finds in its environment."""
        return seen_by_program(self.ground)

    def seen_by_tracer(self) -> Mapping[str, str]:
        """Return what the worker's start-up finds there besides."""
        return seen_by_tracer(self.ground, self._spec.probation_steps)

    def survival(self, attempt: int, ranks: Sequence[int]) -> Survival:
        """Look at the steps of these ranks."""
        counts = [(rank, read_steps(self._run_directory.steps_file(attempt, rank))) for rank in ranks]
        made = [count.steps if count is not None else 0 for _, count in counts]
        paces = [
            (count.last_step_monotonic_s - count.first_step_monotonic_s) / (count.steps - 1)
            for _, count in counts
            if count is not None
            and count.steps > 1
            and count.first_step_monotonic_s is not None
            and count.last_step_monotonic_s is not None
        ]
        broken = next(
            ((rank, count.not_finite_step) for rank, count in counts if count and count.not_finite_step), None
        )
        return Survival(min(made, default=0), max(paces, default=0.0), broken)


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())
