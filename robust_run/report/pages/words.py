"""How pages write times, durations, counts and ranks. Pure but for the time zone, which is an argument."""

from __future__ import annotations

from datetime import datetime

from robust_run.report.pages.types import Drawn
from robust_run.tracer.words import span

__all__ = [
    "ago",
    "as_of",
    "clock_time",
    "count",
    "date_time",
    "incident_name",
    "lasted",
    "number",
    "percent",
    "ranks",
    "span",
]


#: Seconds beyond which a time is a fault of its writer (some 1,900 years), and the sign shown instead.
_MOST_S = 6e10
_ABSURD = "–"


def lasted(seconds: float) -> str:
    """Return `0.41 s`, `4.2 s`, `3 min 10 s`, `2 h 5 min` or `3 d 4 h`."""
    if not seconds <= _MOST_S:
        return _ABSURD
    seconds = max(seconds, 0.0)
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def ago(seconds: float) -> str:
    """Return `just now`, or `4 min ago`."""
    return "just now" if seconds < 2.0 else f"{lasted(float(round(seconds)))} ago".replace(".0 s", " s")


def clock_time(unix_s: float, tenths: bool = False) -> str:
    """Return `14:03:07`, or `14:03:07.4`, of the reader's zone where the page is drawn."""
    if not abs(unix_s) <= _MOST_S:
        return _ABSURD
    text = datetime.fromtimestamp(unix_s // 1).strftime("%H:%M:%S")
    return f"{text}.{int(unix_s % 1 * 10)}" if tenths else text


def date_time(unix_s: float) -> str:
    """Return `2026-11-22 14:03:07 UTC`, with the zone where the page is drawn."""
    if not abs(unix_s) <= _MOST_S:
        return _ABSURD
    return datetime.fromtimestamp(unix_s // 1).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def as_of(drawn: Drawn) -> str:
    """Return how a job is by a page of it that stays as it is: of one that is over, or that a browser renews, nothing."""
    if drawn.served or drawn.life == "over":
        return ""
    how = {"running": "running", "gone": "no end was recorded", "unknown": "not known whether it runs"}[drawn.life]
    return f"<span>as of {clock_time(drawn.at_s)}, {how}</span>"


def number(value: float) -> str:
    """Return a whole number with thin spaces between thousands: `12 400`."""
    if not abs(value) < 1e18:
        return _ABSURD
    return f"{round(value):,}".replace(",", "\u202f")


def count(value: int, noun: str) -> str:
    """Return `1 rank` or `1 200 ranks`."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


def percent(share: float) -> str:
    """Return `97.3 %`; never rounds up to 100 %."""
    value = min(share * 100.0, 99.99) if share < 1.0 else 100.0
    return f"{int(value * 10) / 10:.1f}\u202f%" if value < 100.0 else "100\u202f%"


def ranks(which: tuple[int, ...]) -> str:
    """Return `rank 5` or `ranks 0-3,7`."""
    return f"rank {which[0]}" if len(which) == 1 else f"ranks {span(which)}"


def incident_name(number: int) -> str:
    """Return the file name of an incident's page."""
    return f"{number:04d}.html"
