"""Time as an argument: code that needs the time is handed a `Clock`, so tests hand over one they turn by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two times a job needs."""

    def monotonic_s(self) -> float:
        """Seconds that never go backwards: for orders, deadlines and durations on this machine."""
        ...

    def unix_s(self) -> float:
        """Seconds since the epoch: for people and for files, never for deadlines."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        """Return CLOCK_MONOTONIC, which all processes of a machine share."""
        return time.monotonic()

    def unix_s(self) -> float:
        """Return the wall time."""
        return time.time()


def seconds_of(text: str, units: str = "smhd") -> float:
    """Return the seconds of `90s`, `30m`, `8h`, `2d` or a bare number, as people type them; NaN for what is no time."""
    unit = text[-1:] if text[-1:] in units else ""
    try:
        return float(text[:-1] if unit else text) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[unit]
    except ValueError:
        return float("nan")
