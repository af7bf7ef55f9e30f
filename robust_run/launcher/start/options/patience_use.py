"""How long a wait that is not proven to be a hang is borne (`--hang-patience`); for jobs that say so."""

from __future__ import annotations

import math

from robust_run.errors import UserError


def parse_patience_s(text: str, hang_after_s: float) -> float | None:
    """Return the seconds of `--hang-patience`: `90s`, `5m`, `2h` or a bare number; None for `auto`. Raises UserError."""
    word = text.strip().lower()
    if word == "auto":
        return None
    units_s = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit_s = (word[:-1], units_s[word[-1]]) if word[-1:] in units_s else (word, 1.0)
    try:
        seconds = float(number) * unit_s
    except ValueError:
        seconds = -1.0
    if not (0 < seconds < math.inf):
        raise UserError(f"--hang-patience {text!r} is no time; write 90s, 5m, 2h or auto")
    if seconds < hang_after_s:
        raise UserError(
            f"--hang-patience {text}: must be --hang-after ({hang_after_s:g} s) or more; write a longer time"
        )
    return seconds
