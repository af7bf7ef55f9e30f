"""Liveness of a job, as far as it can be known where the command runs: from its end on record, its controller's answer or
silence, and the lock on its journal. Pure.

`--resume` starts a second training where the first one lives, so it is advised only where `robust-run --resume` itself would
accept it, on that very node: the conditions are those of `launcher.resume`.
"""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

Life = Literal["running", "over", "gone", "unknown"]
"""running: its controller answers. over: its end is on record. gone: it did not end, and nothing controls it any more.
unknown: nothing here can tell."""


class LifeSigns(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a job's controller."""

    run_directory: str
    is_over: bool = False
    """Its end is on record."""
    answers: bool = False
    host: str = ""
    """Where its controller runs or ran."""
    is_this_host: bool = False
    """That is this machine, by its name and, where that is known, by its boot."""
    silence: str = ""
    """Why it does not answer, as a clause."""
    is_refused: bool = False
    """Certain: where the controller served, on this very kernel, nothing listens, or nothing ever did."""
    is_claimed: bool = False
    """A process holds its journal. (False proves nothing: some file systems know no locks.)"""
    process: int = 0
    """A process that may be the controller although it serves nothing; 0: there is none."""
    led_by: str = ""
    """Which candidate leads it, or why that cannot be known, as a clause; empty: none does, or the job has no candidates."""


class JobLife(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a job lives."""

    life: Life
    note: str = ""
    """How that is known, or why it is not, as a clause; empty where the job answers or is over."""
    command: str = ""
    """What to type; empty: nothing."""
    where: str = ""
    """On which host; empty: here."""

    @property
    def resumable(self) -> bool:
        """Whether `robust-run --resume` would continue it, typed here."""
        return self.life == "gone" and bool(self.command) and not self.where

    @property
    def todo(self) -> str:
        """What to type, and where, in a line; empty: nothing."""
        if self.life == "gone":
            return f"{self.command}, typed on {self.where}" if self.where else self.command
        when = f"on {self.where}" if self.where else "again in a moment"
        return f"ask {when}: {self.command}" if self.command else ""


def life_of(seen: LifeSigns) -> JobLife:
    """Return whether the job lives, and what to do where it does not answer."""
    if seen.is_over:
        return JobLife(life="over")
    if seen.answers:
        return JobLife(life="running")
    if seen.led_by:
        return _unknown(seen, seen.led_by)
    if seen.is_claimed:
        silence = "nothing listens where its controller served" if seen.is_refused else seen.silence
        return _unknown(seen, f"{silence}, but a process holds its journal, so it lives")
    if not seen.is_refused:
        return _unknown(seen, seen.silence)
    if seen.process:
        clause = f"process {seen.process} exists, which was its controller, but has no status socket"
        return _unknown(seen, clause)
    where = "" if seen.is_this_host else seen.host
    command = f"robust-run --resume {shlex.quote(seen.run_directory)}"
    return JobLife(life="gone", note=seen.silence, command=command, where=where)


def _unknown(seen: LifeSigns, note: str) -> JobLife:
    where = "" if seen.is_this_host else seen.host
    return JobLife(life="unknown", note=note, command=f"robust status {shlex.quote(seen.run_directory)}", where=where)
