"""Interface of the controller for the API. No behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from robust_run.launcher.controller.steps import StepBook
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.events import Event
from robust_run.report.types import Incident
from robust_run.tracer.nccl.types import CommRate
from robust_run.tracer.types import Scene

if TYPE_CHECKING:
    from robust_run.launcher.controller.checks.checking import Checking


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while one controller runs."""

    run_id: str
    rdzv_id: str = ""
    script: str
    host: str
    """Host name of the controller."""
    pid: int
    version: str = ""
    started_unix_s: float
    """When the job started, not this controller."""
    run_directory: str
    """Absolute; empty where no logs are kept."""
    policy: CorePolicy
    argv: tuple[str, ...] = ()
    """What a worker runs."""
    is_python: bool = True
    cwd: str = ""
    """Where the job was started."""
    code: str = "in-place"
    """As `JobSpec.code`."""
    ckpt_dir: str | None = None
    """As `JobSpec.ckpt_dir`."""
    memory: str = ""
    """Folder with the rings of the ranks, where they run on the controller's node; empty: they do not."""


class ControllerHandle(Protocol):
    """A running controller. Everything is called on its event loop and must return at once."""

    @property
    def facts(self) -> JobFacts:
        """What the job is."""
        ...

    @property
    def journal_path(self) -> str:
        """Where `robust events` reads."""
        ...

    def state(self) -> JobState:
        """Return what the core knows; it is only read."""
        ...

    def tell(self, event: Event) -> None:
        """Take in what an operator wants: NodeEvicted, NodeReadmitted, RestartAsked, SignalReceived. Never raises."""
        ...

    def silent_s(self, node_id: str) -> float | None:
        """Return the seconds since an agent's last sign of life; None where it has no connection to be silent on."""
        ...

    def incidents(self) -> Sequence[Incident]:
        """Return the incidents so far, newest last."""
        ...

    def nccl_rates(self) -> Sequence[CommRate]:
        """Return what NCCL completed since this controller began, by communicator, where it is traced."""
        ...

    def notices(self) -> Mapping[str, int]:
        """Return how many notifications were sent, failed and suppressed; empty where nobody is notified."""
        ...

    def steps(self) -> StepBook:
        """Return what nodes said of their steps; it is only read."""
        ...

    def observe(self, then: Callable[[Scene], None], samples: int) -> bool:
        """Have all ranks looked at, and call with what is seen, within seconds. False where nothing runs."""
        ...

    def checking(self) -> Checking:
        """Return what has checks carried out."""
        ...

    def keep_traces(self) -> bool:
        """Have the rings of all ranks copied to the run directory. False where nothing runs."""
        ...
