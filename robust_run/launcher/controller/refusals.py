"""Messages about agents that were turned away: each reason once for each host, and not too often."""

from __future__ import annotations

from collections.abc import Callable

#: Lines in the life of a controller; all are in controller.log.
MOST_LINES = 10


class Refusals:
    """Says why agents were not let in, and counts them. Call it with an agent's address, port and all, and the reason."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[tuple[str, str]] = set()

    @property
    def count(self) -> int:
        """How many different refusals there were, counted up to `MOST_LINES`."""
        return len(self._said)

    def __call__(self, address: str, why: str) -> None:
        """Say it, unless it was said before or too much was."""
        host = address.rpartition(":")[0] or address
        if (host, why) in self._said or len(self._said) >= MOST_LINES:
            return
        self._said.add((host, why))
        last = "; further refusals are in controller.log alone" if len(self._said) == MOST_LINES else ""
        self._say(f"the agent at {host} was turned away: {why}{last}")
