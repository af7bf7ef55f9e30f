"""Interface of a coordinator, where candidates for the leadership of a job meet. No behaviour."""

from __future__ import annotations

from typing import Protocol

from robust_run.launcher.controller.leadership.tenure import Leadership
from robust_run.launcher.controller.leadership.types import Candidate, LeaderRecord, RunStanding, SavedState


class Coordinator(Protocol):
    """A place where candidates meet: a shared folder, or etcd."""

    async def campaign(self, me: Candidate, ttl_s: float) -> Leadership:
        """Wait until elected. The term is larger than every earlier one's; `ttl_s` bounds how long a dead leader blocks.

        An unreachable place is waited for. Raises JobFinished if nobody is to lead any more, UserError if another run leads
        under this job's name, PlatformError (CoordinatorRefused) for what waiting cannot mend.
        """
        ...

    async def leader(self) -> LeaderRecord | None:
        """Return the newest leader known, which may be dead by now; None: nobody leads, or it said that it goes.

        Raises JobFinished, CoordinatorUnreachable, CoordinatorRefused.
        """
        ...

    async def standing(self) -> RunStanding | None:
        """Return how the newest run stands; None: none is on record. Raises CoordinatorUnreachable, CoordinatorRefused."""
        ...

    async def load(self) -> SavedState | None:
        """Return what was saved last. A new leader sees everything that its predecessors saved successfully.

        Raises CoordinatorUnreachable, CoordinatorRefused.
        """
        ...

    async def load_members(self) -> dict[str, bytes]:
        """Return the members as put last, by id. Raises as `load` does."""
        ...

    async def close(self) -> None:
        """Let go of connections. Leads on until its lease ends, if it leads; see `Leadership.resign`."""
        ...
