"""The controller as the API sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.controller.steps import StepBook
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.job import JobSpec
from robust_run.report.types import Incident
from robust_run.tracer.nccl.types import CommRate
from robust_run.tracer.types import Scene
from robust_run.version import __version__


def job_facts(
    spec: JobSpec, controller: Controller, host: str, started_unix_s: float, run_directory: str, memory: str = ""
) -> JobFacts:
    """Return what the API says of a job that this process controls. `run_directory`: empty where no logs are kept."""
    return JobFacts(
        run_id=spec.run_id,
        rdzv_id=spec.rdzv_id,
        script=spec.script,
        host=host,
        pid=os.getpid(),
        version=__version__,
        started_unix_s=started_unix_s,
        run_directory=run_directory,
        policy=controller.policy,
        argv=spec.argv,
        is_python=spec.is_python,
        cwd=os.getcwd(),
        code=spec.code,
        ckpt_dir=spec.ckpt_dir,
        memory=memory,
    )


if TYPE_CHECKING:
    from robust_run.launcher.controller.checks.checking import Checking


class Handle:
    """See `controller.handle_types.ControllerHandle`."""

    def __init__(
        self,
        facts: JobFacts,
        controller: Controller,
        journal_path: str,
        silent_s: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        self.facts = facts
        self.journal_path = journal_path
        self._controller = controller
        self._silent_s = silent_s

    def state(self) -> JobState:
        """Return what the core knows."""
        return self._controller.state

    def tell(self, event: Event) -> None:
        """Take in what an operator wants."""
        self._controller.tell(event)

    def silent_s(self, node_id: str) -> float | None:
        """Return the seconds since an agent's last sign of life."""
        return self._silent_s(node_id)

    def incidents(self) -> list[Incident]:
        """Return the incidents so far."""
        return self._controller.book.incidents

    def nccl_rates(self) -> Sequence[CommRate]:
        """Return what NCCL completed so far."""
        return self._controller.nccl_rates()

    def notices(self) -> Mapping[str, int]:
        """Return how many notifications there were, by outcome."""
        notifier = self._controller.book.notifier
        return notifier.counts() if notifier is not None else {}

    def steps(self) -> StepBook:
        """Return what nodes said of their steps."""
        return self._controller.steps()

    def observe(self, then: Callable[[Scene], None], samples: int) -> bool:
        """Have all ranks looked at."""
        return self._controller.parts.collector.ask(then, samples=samples)

    def checking(self) -> Checking:
        """Return what has checks carried out."""
        return self._controller.parts.checking

    def keep_traces(self) -> bool:
        """Have all rings copied."""
        return self._controller.keep_traces()
