"""What all parts of a simulated job share: its time, its hosts, its state and its course. `world.World` puts them together."""

from __future__ import annotations

import heapq
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.events import Event
from robust_run.planning.course import AttemptCourse, Course
from robust_run.planning.faults import DAY_S, Fault
from robust_run.planning.simulated.hosts import Host
from robust_run.planning.simulated.saved import InMemory
from robust_run.planning.words import Plan


class AgentsPart(Protocol):
    """What others ask of `agents.Agents`."""

    def is_slow(self, share: float) -> None: ...  # noqa: D102

    def settle(self, node: str, *, goes: bool = False) -> None: ...  # noqa: D102


class StrikesPart(Protocol):
    """What others ask of `strikes.Strikes`."""

    def started(self, index: int) -> None: ...  # noqa: D102

    def trains(self, index: int) -> None: ...  # noqa: D102

    def people_evict(self, host: Host, fault: Fault) -> None: ...  # noqa: D102

    def newest_of(self, host: Host) -> Fault | None: ...  # noqa: D102


class SimulatedJob(ABC):
    """One job, from a seed."""

    agents: AgentsPart
    strikes: StrikesPart

    def __init__(self, plan: Plan, seed: int, *, is_single: bool) -> None:
        self.plan, self.seed, self.is_single = plan, seed, is_single
        self.now_s, self.until_s = 0.0, plan.days * DAY_S
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.state = JobState()
        self.hosts = [Host(index=index, name=f"node-{index}") for index in range(plan.nodes + plan.standby)]
        self.by_agent: dict[str, Host] = {}
        self.course = Course(seed=seed, until_s=self.until_s)
        self.memory: InMemory | None = None

    def at(self, at_s: float, what: Callable[[], object]) -> None:
        """Do something at a time."""
        heapq.heappush(self._agenda, (max(at_s, self.now_s), next(self._numbers), what))

    def after(self, delay_s: float, what: Callable[[], object]) -> None:
        """Do something in so many seconds."""
        self.at(self.now_s + delay_s, what)

    def rng(self, *of: object) -> random.Random:
        """Return a source of chance of its own for one thing, whatever else happens."""
        return random.Random("/".join(map(str, (self.seed, *of))))

    @property
    def attempt(self) -> AttemptCourse:
        """The newest attempt."""
        return self.course.attempts[-1]

    @property
    def index(self) -> int:
        """Its number among all, whichever job they are of."""
        return len(self.course.attempts) - 1

    def is_in(self, index: int) -> bool:
        """Whether this attempt goes on."""
        return index == self.index and self.state.is_going and self.attempt.told_s is None

    @abstractmethod
    def feed(self, event: Event) -> None:
        """Have the core decide about an event, and do what it says."""

    @abstractmethod
    def put_out(self, host: Host) -> None:
        """See `hosts_going.HostsThatGo`."""

    @abstractmethod
    def lose(self, host: Host) -> None:
        """See `hosts_going.HostsThatGo`."""
