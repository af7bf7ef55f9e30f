"""Exposure by host: how long each was part of a job, standbys included, from the lines of its journal. Pure.

What failure rates are divided by. A host is part of the job from when an agent of it has joined until the last one there is lost
or leaves, the host is evicted, or the job is over. While no controller was there the journal says nothing: an agent that returns
to the next one was there all the time, of others nothing is known after the last line before.
"""

from __future__ import annotations

from collections import Counter

from robust_run.launcher.model import actions as a
from robust_run.launcher.model import node_events as n
from robust_run.launcher.records.folds.evicted import Evicted
from robust_run.launcher.records.journal import JournalEntry

#: Hosts that are told apart; a journal with more is damaged.
MOST_HOSTS = 100_000


class Exposure:
    """Follows a journal, whose lines are in force."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        """Those that are connected, and the names of their hosts."""
        self._names: dict[str, str] = {}
        """Of all agents that were."""
        self._newest: dict[str, str] = {}
        """By host: the agent that came last."""
        self._here: Counter[str] = Counter()
        """By host: agents that are connected."""
        self._unsure: dict[str, float] = {}
        """Those that no controller has heard of since the newest took over, and when they were last on record."""
        self._since: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._evicted = Evicted()
        self._restart = 0
        self._last_s = 0.0

    def take(self, entry: JournalEntry) -> None:
        """Take in the next line."""
        at_s = entry.at
        for name in self._evicted.take(entry):
            self._settle(name, at_s)
        match entry.event:
            case n.JobStarted(restart=restart) | n.ControllerResumed(restart=restart):
                self._taken_over(is_requeue=restart > self._restart)
                self._restart = max(self._restart, restart)
            case n.NodeJoined(node=info):
                self._come(info.id, info.name, at_s)
            case n.NodeReturned(node=agent, name=name):
                self._come(agent, name or self._names.get(agent, ""), at_s)
            case n.NodeLost(node=agent) | n.NodeLeft(node=agent):
                self._go(agent, self._unsure.get(agent, at_s))
            case n.NodeReadmitted(name=name):
                self._settle(name, at_s)
        if isinstance(entry.action, a.Finish):
            self._all_go(at_s)
        self._last_s = max(self._last_s, at_s)

    def seconds(self, until_s: float) -> dict[str, float]:
        """Return how long each host was part of the job by then."""
        total = dict(self._seconds)
        unsure = {self._agents.get(agent, ""): at_s for agent, at_s in self._unsure.items()}
        for name, since_s in self._since.items():
            total[name] = total.get(name, 0.0) + max(min(unsure.get(name, until_s), until_s) - since_s, 0.0)
        return {name: total[name] for name in sorted(total) if name}

    def _taken_over(self, *, is_requeue: bool) -> None:
        if is_requeue:  # none of the agents on record is left
            self._all_go(self._last_s)
        else:
            self._unsure = {agent: self._unsure.get(agent, self._last_s) for agent in self._agents}

    def _come(self, agent: str, name: str, at_s: float) -> None:
        self._unsure.pop(agent, None)
        if name and agent not in self._agents and len(self._names) < MOST_HOSTS:
            before = self._newest.get(name, "")
            if before in self._unsure:
                self._go(before, self._unsure[before])  # this one has taken its place
            self._agents[agent] = self._names[agent] = name
            self._newest[name] = agent
            self._here[name] += 1
            self._settle(name, at_s)

    def _go(self, agent: str, at_s: float) -> None:
        name = self._agents.pop(agent, "")
        self._unsure.pop(agent, None)
        if name:
            self._here[name] -= 1
            self._settle(name, at_s)

    def _all_go(self, at_s: float) -> None:
        for agent in list(self._agents):
            self._go(agent, self._unsure.get(agent, at_s))

    def _settle(self, name: str, at_s: float) -> None:
        is_in = self._here[name] > 0 and name not in self._evicted.now
        if is_in:
            self._since.setdefault(name, at_s)
        elif name in self._since:
            self._seconds[name] = self._seconds.get(name, 0.0) + max(at_s - self._since.pop(name), 0.0)
