"""Failure detector: which agents have been silent for so long that they have fenced themselves. Pure.

Each agent is waited for as long as the longest lease lasts that it was granted and may still hold: `patience_s` after its last
sign of life on a quiet cluster, longer where machines are late (see `controller.leases`).
"""

from __future__ import annotations

from collections.abc import Iterable

#: Silence that is this much short of too long makes an agent a suspect. More than the time between two looks.
NEARLY_S = 0.25


class FailureDetector:
    """The last signs of life of the agents that are part of the job.

    An agent without a connection is silent since the last thing it said; one that was there when an earlier controller died
    is taken to have been heard when this one began to listen: only from then on could it have spoken to us.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        """Silence after which an agent has ended its workers for certain, if it was granted nothing longer."""
        self._until_s: dict[str, float] = {}
        """When that is, of those that were."""
        self._heard_s: dict[str, float] = {}
        self._suspects: set[str] = set()
        """Those that were as good as silent when `lost` looked last."""
        self._none_before_s = float("-inf")
        """Nobody can be a suspect before: so thousands need not be looked at ten times a second."""

    def heard(self, node: str, at_s: float) -> None:
        """Note a sign of life."""
        if at_s > self._heard_s.get(node, float("-inf")):
            self._heard_s[node] = at_s
            self._none_before_s = min(self._none_before_s, at_s + self.patience_s - NEARLY_S)

    def heard_all(self, signs: Iterable[tuple[str, float]]) -> None:
        """Note the newest signs of life of many, none older than the last call of `lost`: what is cheap enough ten times a
        second for ten thousand.
        """
        self._heard_s.update(signs)

    def granted(self, node: str, until_s: float) -> None:
        """Note that an agent may run workers until then, unless more is known."""
        if until_s > self._until_s.get(node, float("-inf")):
            self._until_s[node] = until_s

    def expect(self, nodes: Iterable[str], now_s: float, patience_s: float = 0.0) -> None:
        """Wait for these from now on; `patience_s`: as long as their leases of an earlier controller may last."""
        for node in nodes:
            self.heard(node, now_s)
            if patience_s > self.patience_s:
                self.granted(node, now_s + patience_s)

    def forget(self, node: str) -> None:
        """Do not wait for this one any more."""
        self._heard_s.pop(node, None)
        self._until_s.pop(node, None)

    def silent_s(self, node: str, now_s: float) -> float | None:
        """Return for how long an agent has been silent, None if it is not waited for."""
        at_s = self._heard_s.get(node)
        return None if at_s is None else now_s - at_s

    def heard_at_s(self, node: str) -> float | None:
        """Return when an agent gave its last sign of life, None if it is not waited for."""
        return self._heard_s.get(node)

    def longest_silence_s(self, now_s: float) -> float:
        """Return for how long the most silent agent has been silent."""
        return now_s - min(self._heard_s.values(), default=now_s)

    def wait_anew(self, before_s: float, now_s: float) -> None:
        """Wait for those that were heard last before then as if they were heard now: it was this process that heard nobody."""
        self._heard_s.update((node, now_s) for node, at_s in self._heard_s.items() if at_s <= before_s)

    def lost(self, now_s: float) -> list[tuple[str, float]]:
        """Return the agents that are silent for too long, with their silence in seconds. Call it every now and then.

        If it is this process that was held up, what they said may not have been read yet. So only those are returned that
        were as good as silent the last time too: what had arrived by then has been read since.
        """
        if now_s < self._none_before_s:
            self._suspects = set()
            return []
        suspect_s = now_s - self.patience_s + NEARLY_S
        earliest_s = min(self._heard_s.values(), default=now_s)
        self._none_before_s = earliest_s + self.patience_s - NEARLY_S
        suspects = [node for node, at_s in self._heard_s.items() if at_s <= suspect_s]
        if self._until_s and suspects:
            suspects = [node for node in suspects if self._until_s.get(node, 0.0) <= now_s + NEARLY_S]
        before, self._suspects = self._suspects, set(suspects)
        silent = ((node, now_s - self._heard_s[node]) for node in suspects if node in before)
        return [
            (node, silent_s)
            for node, silent_s in silent
            if silent_s >= self.patience_s and self._until_s.get(node, 0.0) <= now_s
        ]
