"""Blame for input errors: a rank that died of one soon after its place had trouble died of that trouble."""

from __future__ import annotations

import threading
from collections import deque

import msgspec

from robust_run.clock import Clock
from robust_run.health.types import Finding
from robust_run.signals import describe_exit

SIGBUS, SIGSEGV = 7, 11
#: How long after a trouble with the place an input error of a rank is taken to be of it.
TROUBLE_S = 120.0
#: How long a rank's end by an input error may precede the news of the trouble.
HEAR_S = 0.5
_INPUT_ERRORS = (
    "Input/output error",
    "Bus error",
    "Transport endpoint is not connected",
    "Stale file handle",
    "Software caused connection abort",
)


class PlaceTroubles:
    """What went wrong with one place. Safe for threads."""

    def __init__(self, name: str, clock: Clock) -> None:
        """`name`: of the place, for messages."""
        self._name, self._clock = name, clock
        self._troubles: deque[tuple[float, str]] = deque(maxlen=8)
        self._heard = threading.Condition()

    def add(self, sentence: str) -> None:
        """Note that something went wrong."""
        with self._heard:
            self._troubles.append((self._clock.monotonic_s(), sentence))
            self._heard.notify_all()

    def _recent(self) -> list[str]:
        now_s = self._clock.monotonic_s()
        return [text for at_s, text in self._troubles if now_s - at_s <= TROUBLE_S]

    def blame(self, finding: Finding | None, exit_code: int | None) -> Finding | None:
        """Return what a rank shows, with the place's trouble as the reason if it died of an input error after one."""
        words = f"{finding.line} {finding.message}" if finding is not None else ""
        is_input = exit_code in (-SIGBUS, -SIGSEGV) or any(each in words for each in _INPUT_ERRORS)
        if exit_code in (0, None) or not is_input:
            return finding
        with self._heard:  # a rank dies at once of what is still being passed on to us
            self._heard.wait_for(self._recent, HEAR_S)
            recent = self._recent()
        if not recent:
            return finding
        shown = f"{finding.exception}: {finding.message}" if finding is not None and finding.exception else ""
        line = f"the {self._name} failed: {recent[-1]}{f' ({shown.splitlines()[0]})' if shown else ''}"
        if finding is None:
            return Finding(kind="storage", line=line, excerpt=describe_exit(exit_code))
        return msgspec.structs.replace(finding, kind="storage", line=line, exception="", heals=True)
