"""Streams: what goes to one folder, step by step, and when storage is due there.

A program may keep several, each in a folder of its own (the weights, their moving average). Memory and the launcher's resume
point belong to one of them, the first; the others have storage alone, each with a clock of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from robust_run.checkpoint import together
from robust_run.checkpoint.rules.cadence import Every, is_step_due, is_time_due, stored_since_s
from robust_run.checkpoint.rules.settings import WARNING, Settings
from robust_run.errors import UserError


class Due(NamedTuple):
    """What all ranks know after a save, alike where it counts."""

    now: bool
    """Storage is written."""
    memory_failed: bool
    """On a rank; a generation without one rank is none."""


class Stream:
    """What goes to one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """Empty: to no storage."""
        self.last_step = 0
        """Of the last call, or what was loaded."""
        self.began_step = 0
        """Of what was loaded; 0: the beginning."""
        self.leave: dict[str, None] = {}
        """Names of checkpoints that were loaded, or could not be."""
        self.found_step = 0
        """The highest in the folder when the first step was saved, as rank 0 saw it; 0: none, and on other ranks."""
        self.objects: frozenset[int] = frozenset()
        """Identities of what has a state of its own in what was saved last."""
        self._said: set[str] = set()
        self.stored_at_s = 0.0
        """On this process's monotonic clock."""
        self.is_put_off = False
        """Storage was due, and an earlier step was still being written: the next one goes there."""
        self.agreed: Agreed | None = None
        """None: nothing was saved yet."""
        self.is_warned = False
        """The job is about to be ended, and storage has what was saved then."""

    def say_once(self, text: str, say: Callable[[str], None]) -> None:
        """Say what is not said yet; nothing, if it is empty."""
        if text and text not in self._said:
            self._said.add(text)
            say(text)

    def agree(self, settings: Settings) -> Agreed:
        """At the first save, on all ranks: where to, how often, and whether there is memory.

        Nothing of it may differ from rank to rank: it says who takes part in what follows. So rank 0's word on how often counts,
        and there is memory if every rank has some.

        Raises:
            UserError: Ranks were told different folders.
        """
        if self.agreed is None:
            said = together.said_by_all((settings.folder, settings.every, settings.is_told, bool(settings.memory)))
            for rank, (folder, *_) in enumerate(said):
                if folder != said[0][0]:
                    raise UserError(
                        f"rank 0 saves to {said[0][0]!r}, rank {rank} to {folder!r}: give all ranks the same folder"
                    )
            self.agreed = Agreed(said[0][1], said[0][2], all(has_memory for *_, has_memory in said))
            age_s = together.first_says(self._look) if self.folder else 0.0
            self.stored_at_s = time.monotonic() - age_s
        return self.agreed

    def _look(self) -> float:
        from robust_run.checkpoint import storage

        newest_s, self.found_step = storage.newest_there(self.folder)
        is_restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
        return stored_since_s(newest_s, time.time(), is_restart=is_restart)

    def check_objects(self, state: dict[str, Any], step: int) -> None:
        """Raise UserError if another state than the one that was saved last claims the same step of the same folder."""
        objects = frozenset(id(each) for each in state.values() if hasattr(each, "state_dict"))
        if step == self.last_step and self.objects and objects and not objects & self.objects:
            raise UserError(
                f"step {step} was saved already, and of other objects: give each state a folder of its own "
                "(folder=), or save both as one dict"
            )
        self.objects = objects

    def is_due(self, settings: Settings, step: int, *, is_beside_memory: bool, memory_failed: bool) -> Due:
        """Ask all ranks whether storage is written now, and whether memory failed. Where a clock is asked it is that of rank 0.

        `is_beside_memory`: memory has this stream, as far as all ranks know; it is what makes storage seldom by default.
        """
        assert self.agreed is not None, "agree comes first"
        every = settings.every if settings.is_said else self.agreed.every
        is_told = settings.is_said or self.agreed.is_told
        warning = "" if self.is_warned else os.environ.get(WARNING, "")
        is_new_warning = bool(warning) and together.first_says_yes(os.path.exists(warning))
        self.is_warned = self.is_warned or is_new_warning
        if is_told and every.steps:
            return Due(is_new_warning or is_step_due(every, self.last_step, step), memory_failed)
        if not is_told and not is_beside_memory:
            return Due(True, memory_failed)
        is_time = is_new_warning or (together.is_first() and is_time_due(every, time.monotonic() - self.stored_at_s))
        now, failed = together.any_say_yes(is_time, memory_failed)
        return Due(now or (failed and not is_told), failed)


class Agreed(NamedTuple):
    """What holds for a stream on all ranks."""

    every: Every
    """How often storage is written where a call does not say."""
    is_told: bool
    """Somebody said so; else it is a default, for streams that memory has."""
    has_memory: bool
