"""Streams: what goes to one folder, step by step, and when storage is due there.

A program may keep several, each in a folder of its own (the weights, their moving average). Memory and the launcher's resume
point belong to one of them, the first; the others have storage alone, each with a clock of its own.
"""

from __future__ import annotations

import os
import time

from robust_run.checkpoint import together
from robust_run.checkpoint.cadence import AT_EVERY_CALL, Every, is_step_due, is_time_due
from robust_run.checkpoint.settings import WARNING, Settings
from robust_run.errors import UserError


class Stream:
    """What goes to one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """Empty: to no storage."""
        self.last_step = 0
        """Of the last call, or what was loaded."""
        self.stored_at_s: float | None = None
        """On this process's monotonic clock; None: not asked yet."""
        self.agreed: Every | None = None
        """How often storage is written where a call does not say: what rank 0 was told."""
        self.is_warned = False
        """The job is about to be ended, and storage has what was saved then."""

    def agree(self, settings: Settings) -> None:
        """At the first save, on all ranks: the same folder, and rank 0's word on how often.

        Raises:
            UserError: Ranks were told different folders.
        """
        if self.agreed is not None:
            return
        said = together.said_by_all((settings.folder, settings.every))
        for rank, (folder, _) in enumerate(said):
            if folder != said[0][0]:
                raise UserError(
                    f"rank 0 saves to {said[0][0]!r}, rank {rank} to {folder!r}: give all ranks the same folder"
                )
        self.agreed = said[0][1]
        self.stored_at_s = time.monotonic() - (together.first_says(lambda: _age_s(self.folder)) if self.folder else 0.0)

    def is_due(self, settings: Settings, step: int, *, is_beside_memory: bool) -> bool:
        """Whether storage is written now, on all ranks alike: what rank 0 finds where a clock is asked."""
        assert self.agreed is not None and self.stored_at_s is not None
        every = settings.every if settings.is_said else self.agreed
        if not is_beside_memory and not settings.is_told:
            every = AT_EVERY_CALL
        warning = "" if self.is_warned else os.environ.get(WARNING, "")
        if warning and together.first_says_yes(os.path.exists(warning)):
            self.is_warned = True
            return True
        if every.steps:
            return is_step_due(every, self.last_step, step)
        return together.first_says_yes(is_time_due(every, time.monotonic() - self.stored_at_s))


def _age_s(folder: str) -> float:
    """Return for how long storage has had nothing newer. That goes on over restarts, or a job that fails often never saves."""
    from robust_run.checkpoint import storage

    newest_s = storage.newest_created_s(folder)
    if newest_s is not None:
        return max(0.0, time.time() - newest_s)
    is_restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    return float("inf") if is_restart else 0.0
