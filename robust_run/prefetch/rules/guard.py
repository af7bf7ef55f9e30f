"""When a server that died is started again, and when it is given up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: So many deaths within `WITHIN_S` are enough.
MOST_DEATHS = 5
WITHIN_S = 60.0
_FIRST_DELAY_S = 0.25


def restart_after_s(deaths_s: Sequence[float], now_s: float) -> float | None:
    """Return how long to wait before the next start; None: give it up. `deaths_s`: when servers died, the latest last.

    The first of a row is replaced at once, because reads wait; then the wait doubles.
    """
    recent = [death for death in deaths_s if now_s - death < WITHIN_S]
    if len(recent) >= MOST_DEATHS:
        return None
    return 0.0 if len(recent) <= 1 else _FIRST_DELAY_S * 2.0 ** (len(recent) - 2)
