"""How long a wait that is not proven to be a hang is borne (`--hang-patience`); for jobs that say so."""

from __future__ import annotations

import math

from robust_run.clock import seconds_of
from robust_run.errors import UserError


def parse_patience_s(text: str, hang_after_s: float) -> float | None:
    """Return the seconds of `--hang-patience`: `90s`, `5m`, `2h` or a bare number; None for `auto`. Raises UserError."""
    word = text.strip().lower()
    if word == "auto":
        return None
    seconds = seconds_of(word, "smh")
    if not (0 < seconds < math.inf):
        raise UserError(f"--hang-patience {text!r} is no time; write 90s, 5m, 2h or auto")
    if seconds < hang_after_s:
        raise UserError(
            f"--hang-patience {text}: must be --hang-after ({hang_after_s:g} s) or more; write a longer time"
        )
    return seconds
