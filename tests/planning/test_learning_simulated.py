"""The whole way round: a plan is simulated, what the core decides is a journal, and a plan that learns of it gets the rates back.

Not compared: what evidence cannot tell apart (a row's kinds), and faults whose first sign never comes (a node is lost meanwhile).
"""

from __future__ import annotations

import collections

import msgspec

from robust_run.fleet.found import Found
from robust_run.fleet.words import RunFacts
from robust_run.launcher.model.actions import Action, Finish
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.job import JobSpec, OutputStreams
from robust_run.launcher.operator.views.facts.build import Known, facts_of_run
from robust_run.launcher.operator.views.facts.fold import RunFold
from robust_run.launcher.records.journal import JournalEntry, JournalHeader
from robust_run.planning.learning import learned
from robust_run.planning.mix import DEFAULT, MixFile, scaled
from robust_run.planning.sights import ROWS
from robust_run.planning.simulated.world import World
from robust_run.planning.words import Plan
from robust_run.version import RUN_DIR_SCHEMA

BEGAN_S = 1.7e9


class Journals:
    """Keeps what a simulated job would write, one run after the other."""

    def __init__(self, nproc: int, began_s: float) -> None:
        self.runs: list[RunFacts] = []
        self._began_s = began_s
        self._spec = JobSpec(
            argv=("train.py",),
            script="train.py",
            is_python=True,
            nproc=nproc,
            run_id="r",
            rdzv_id="r",
            log_dir=None,
            streams=OutputStreams(redirects=(), tee=(), shown=()),
        )
        self._fold = self._new()

    def _new(self) -> RunFold:
        return RunFold(JournalHeader(schema=RUN_DIR_SCHEMA, version="1", host="node-0", pid=1, job=self._spec))

    def told(self, now_s: float, event: Event, actions: tuple[Action, ...]) -> None:
        """Take in an event and what was decided on it."""
        at_s = self._began_s + now_s
        self._fold.take(JournalEntry(at=at_s, mono=now_s, event=event))
        for action in actions:
            self._fold.take(JournalEntry(at=at_s, mono=now_s, action=action))
        if any(isinstance(action, Finish) for action in actions):
            self.end(now_s)

    def end(self, now_s: float) -> None:
        """The run is over."""
        known = Known(state="done", until_s=self._began_s + now_s, outcome="done")
        found = tuple(self._fold.on_record.found.values())
        self.runs.append(msgspec.structs.replace(facts_of_run(self._fold, found, known), run_id=f"r{len(self.runs)}"))
        self._fold = self._new()


def simulated(plan: Plan, seed: int) -> tuple[World, list[RunFacts]]:
    world, journals = World(plan, seed), Journals(plan.gpus_per_node, BEGAN_S + seed * 2 * plan.days * 86400.0)
    world.told = journals.told
    world.run()
    journals.end(world.until_s)
    return world, journals.runs


def test_rates_of_a_simulated_cluster_come_back_of_its_journals() -> None:
    plan = Plan(nodes=200, gpus_per_node=8, days=60.0, standby=8, mix=scaled(DEFAULT, 4.0))
    struck: collections.Counter[str] = collections.Counter()
    runs: list[RunFacts] = []
    for seed in range(2):
        world, found = simulated(plan, seed)
        struck.update(world.course.faults)
        runs += found
    _, learned_ = learned(Found(facts=tuple(runs)), MixFile(), plan.nodes)
    by_name = {each.name: each for each in learned_.figures}
    assert by_name["faults.update.per_day"].count == struck["update"]
    table, held = [], 0
    for row in ROWS:
        field = "per_day" if row.name == "bad updates" else "per_1000_node_days"
        each = by_name[f"faults.{'+'.join(row.faults)}.{field}"]
        truth = sum(getattr(plan.mix.faults[name], field) for name in row.faults)
        assert each.low is not None and each.high is not None
        held += each.low <= truth <= each.high
        struck_ = sum(struck[name] for name in row.faults)
        table.append(
            f"{row.name}: {each.count} seen of {struck_}, {each.low:.3f} to {each.high:.3f}, planted {truth:.3f}"
        )
        assert abs(each.count - struck_) <= 1 + 0.1 * struck_, table[-1]
    assert held >= len(ROWS) - 1, "\n".join(table)  # 19 of 20 intervals hold
    assert not any("unexplained" in name for name in by_name)
