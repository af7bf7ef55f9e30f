"""Hosts of a simulated job that go and come back: put out, lost in an instant, taken away, mended."""

from __future__ import annotations

import random
from abc import abstractmethod

from robust_run.launcher.model.node_events import NodeLeft
from robust_run.planning.simulated.hosts import Host
from robust_run.planning.simulated.job import SimulatedJob
from robust_run.planning.words import Plan

#: A node that is being drained is looked at so often.
DRAINED_S = 60.0


class HostsThatGo(SimulatedJob):
    """The hosts' part of `world.World`."""

    def __init__(self, plan: Plan, seed: int, *, is_single: bool) -> None:
        super().__init__(plan, seed, is_single=is_single)
        self._out, self._out_since_s = 0, 0.0
        self._out_s: dict[int, float] = {}

    @abstractmethod
    def join(self, host: Host) -> None:
        """A host comes."""

    def put_out(self, host: Host) -> None:
        """A host is taken away a while after it was put out of the job."""
        if not host.is_out:
            host.is_out, host.struck_by = True, host.fault or self.strikes.newest_of(host)
            self._count_out(1)
            rng = self.rng("out", host.index, host.boots)
            self.after(self.plan.times.drain.draw(rng), lambda: self.take_away(host, rng))

    def lose(self, host: Host) -> None:
        """A host is gone in an instant. What the core is told of it, is told by the caller."""
        self.by_agent.pop(host.agent, None)
        host.agent = ""
        if not host.is_out:
            host.is_out, host.struck_by = True, host.fault or self.strikes.newest_of(host)
            self._count_out(1)
            self._mend(host, self.rng("out", host.index, host.boots))

    def take_away(self, host: Host, rng: random.Random) -> None:
        """A host that was put out is taken away, and mended."""
        is_ending = self.attempt.told_s is not None and self.attempt.ended_s is None
        if is_ending and host.agent in self.state.places:  # it says first that it has ended what runs there
            self.after(DRAINED_S, lambda: self.take_away(host, rng))
            return
        agent, host.agent = host.agent, ""
        if self.by_agent.pop(agent, None) is not None and not self.state.is_over:
            self.feed(NodeLeft(node=agent, reason="drained"))
        self._mend(host, rng)

    def _mend(self, host: Host, rng: random.Random) -> None:
        times, fault = self.plan.times, host.struck_by
        usual = times.repair if host.fault is not None else times.reboot
        spread = fault.kind.repair if fault is not None and fault.kind.repair is not None else usual
        back_s, is_in_vain = spread.draw(rng), rng.random() < self.plan.mix.misrepaired

        def back() -> None:
            if not is_in_vain:
                host.fault = None
            host.is_out, host.struck_by = False, None
            self._count_out(-1)
            self.join(host)

        self.after(back_s, back)

    def _count_out(self, by: int) -> None:
        self._out_s[self._out] = self._out_s.get(self._out, 0.0) + self.now_s - self._out_since_s
        self._out, self._out_since_s = self._out + by, self.now_s

    def out_hours(self) -> list[float]:
        """Return for how many hours no, one, two, ... hosts were out, up to now."""
        self._count_out(0)
        return [self._out_s.get(count, 0.0) / 3600.0 for count in range(max(self._out_s, default=0) + 1)]
