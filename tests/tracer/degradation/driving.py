"""A controller's part in a simulated fleet: it hears rounds, and says who is slow. What would be acted on is counted apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from robust_run.tracer.degradation.causes import seen_on
from robust_run.tracer.degradation.naming import odd_group
from robust_run.tracer.degradation.types import Degradation, Standing
from robust_run.tracer.degradation.watch import Facts, Watch
from robust_run.tracer.degradation.words import verdict_of
from robust_run.tracer.pace.rounds import Rounds
from robust_run.tracer.types import TraceVerdict
from tests.tracer.degradation.fleet import ROUND_S, Fleet


@dataclass
class Driver:
    """What is known of one fleet."""

    fleet: Fleet
    watch: Watch = field(default_factory=Watch)
    rounds: Rounds = field(default_factory=Rounds)
    found: list[tuple[float, Degradation]] = field(default_factory=list)
    over: list[tuple[float, Degradation]] = field(default_factory=list)
    verdicts: list[tuple[float, TraceVerdict]] = field(default_factory=list)
    """All of both detectors."""
    standing: dict[str, Standing] = field(default_factory=dict)

    def hear(self, rounds: int = 1) -> None:
        fleet = self.fleet
        for _ in range(rounds):
            said = fleet.round()
            self.rounds = self.rounds.hear(said, fleet.groups, fleet.pairs)
            verdict = self.rounds.verdict()
            if verdict is not None and all(verdict.ranks != known.ranks for _, known in self.verdicts):
                self.verdicts.append((fleet.at_s, verdict))
            facts = Facts(
                seen=seen_on(fleet.short, fleet.signs()),
                stages=fleet.layout if fleet.stages > 1 else (),
                standing=self.standing,
                now_s=fleet.at_s,
            )
            self.watch, found, over = self.watch.hear(said, facts)
            if found is not None:
                group = odd_group(fleet.transfers) if found.kind == "group" else ""
                self.found.append((fleet.at_s, found))
                self.verdicts.append((fleet.at_s, verdict_of(found, rounds=5, round_s=ROUND_S)))
                if group:
                    self.groups_named.append(group)
            if over is not None:
                self.over.append((fleet.at_s, over))

    groups_named: list[str] = field(default_factory=list)

    @property
    def acted_on(self) -> list[TraceVerdict]:
        """What `--on-slow evict` would do something about."""
        return [verdict for _, verdict in self.verdicts if not verdict.only_told and verdict.nodes]
