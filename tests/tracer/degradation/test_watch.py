"""A job against its own past, told as stories of rounds: who, why, what it costs, and when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from robust_run.tracer.degradation.causes import seen_on
from robust_run.tracer.degradation.types import Degradation, Seen, Standing
from robust_run.tracer.degradation.watch import Facts, Watch
from robust_run.tracer.degradation.words import lines_of, over, sentence, verdict_of
from robust_run.tracer.pace.types import CpuShort, NodePace, RankPace, Reported

STEPS = 8
LATE = Seen("n1", "cpu_limit", "the CPU limit of their cgroup holds ranks back 60 % of the time")


@dataclass
class Job:
    """Four nodes with two ranks each; each rank works `own_ms`, and all meet."""

    own_ms: dict[int, float] = field(default_factory=lambda: dict.fromkeys(range(8), 100.0))
    data_ms: dict[int, float] = field(default_factory=dict)
    comm_ms: float = 20.0
    on_gpus: bool = False
    stages: Sequence[Sequence[int]] = ()
    reported: Reported | None = None
    attempt: int = 0
    step: int = 0
    steps: int = STEPS
    """In a round."""
    at_s: float = 0.0
    watch: Watch = field(default_factory=Watch)
    told: list[Degradation] = field(default_factory=list)
    ended: list[Degradation] = field(default_factory=list)

    def rounds(self, count: int, seen: Sequence[Seen] = (), standing: Mapping[str, Standing] = {}) -> None:
        for _ in range(count):
            self.at_s += 10.0
            if not standing:
                self.step += self.steps
            facts = Facts(
                seen=tuple(seen), stages=self.stages, standing=standing, reported=self.reported, now_s=self.at_s
            )
            self.watch, found, ended = self.watch.hear(self.said(), facts)
            self.told += [found] if found is not None else []
            self.ended += [ended] if ended is not None else []

    def said(self) -> list[NodePace]:
        length_ms = max(self.own_ms.values()) + self.comm_ms
        first = self.step - self.steps + 1
        nodes = []
        for node in range(4):
            ranks = []
            for rank in (2 * node, 2 * node + 1):
                own_ms = length_ms if self.on_gpus else self.own_ms[rank]
                data = (self.data_ms.get(rank, 0.0),) * self.steps
                ranks.append(RankPace(rank, f"n{node}", first, (own_ms,) * self.steps, (length_ms,) * self.steps, data))
            nodes.append(NodePace(self.attempt, f"n{node}", self.at_s - 10.0, self.at_s, tuple(ranks)))
        return nodes

    def slower(self, ranks: Sequence[int], by_ms: float) -> None:
        for rank in ranks:
            self.own_ms[rank] += by_ms


@pytest.fixture
def job() -> Job:
    job = Job()
    job.rounds(30)
    assert not job.told
    return job


def test_a_node_that_becomes_slower_is_named_with_why_and_what_it_costs(job: Job) -> None:
    job.slower((2, 3), 60.0)
    job.rounds(5, [LATE])
    (found,) = job.told
    assert (found.kind, found.nodes, found.ranks, found.cause) == ("node", ("n1",), (2, 3), "cpu_limit")
    assert found.cost.lost == pytest.approx(60 / 180) and found.cost.hours_per_day == pytest.approx(64.0)
    assert sentence(found) == (
        "steps have become longer: 180 ms instead of 120 ms; node n1 is slower, with all of its ranks (ranks 2 and 3); on n1, "
        "the CPU limit of their cgroup holds ranks back 60 % of the time: 33% of throughput, 64 rank-hours a day"
    )
    assert lines_of(found, rounds=5, round_s=10.0)[0].startswith("to do: raise the CPU limit")
    assert verdict_of(found, rounds=5, round_s=10.0).rule == "slower_node"


def test_it_is_told_once_and_again_where_it_becomes_worse_and_when_it_is_over(job: Job) -> None:
    job.slower((2, 3), 60.0)
    job.rounds(60, [LATE])
    assert len(job.told) == 1
    job.slower((6,), 150.0)
    job.rounds(5)
    assert [found.kind for found in job.told] == ["node", "rank"] and job.told[1].ranks == (6,)
    job.own_ms = dict.fromkeys(range(8), 100.0)
    job.rounds(5)
    (ended,) = job.ended
    assert ended == job.told[1]
    assert over(ended, 120.0, job.at_s).startswith("steps take 120 ms again, after ")
    job.rounds(30)
    assert len(job.told) == 2


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_what_lasts_half_a_minute_is_not_told(job: Job, rounds: int) -> None:
    job.slower(range(8), 500.0)
    job.rounds(rounds)
    job.slower(range(8), -500.0)
    job.rounds(20)
    assert not job.told and not job.ended


def test_one_rank_that_waits_for_its_data_has_a_slow_loader(job: Job) -> None:
    job.slower((5,), 80.0)
    job.data_ms = {5: 80.0}
    job.rounds(5)
    (found,) = job.told
    assert (found.kind, found.ranks, found.cause, found.data_ms) == ("rank", (5,), "data", (0.0, 80.0))
    assert "rank 5 (node n2) is slower, waiting for data (80 ms a step)" in sentence(found)


def test_all_that_wait_for_data_are_no_matter_of_one_node(job: Job) -> None:
    job.slower(range(8), 80.0)
    job.data_ms = dict.fromkeys(range(8), 80.0)
    job.rounds(5, [Seen(f"n{node}", "storage", "reads take 9 s") for node in range(4)])
    (found,) = job.told
    assert (found.kind, found.ranks, found.nodes, found.cause) == ("all", (), (), "storage")


def test_a_stage_whose_ranks_became_slower_on_all_of_its_nodes_is_no_node(job: Job) -> None:
    job.stages = ((0, 1, 2, 3), (4, 5, 6, 7))
    job.slower((4, 5, 6, 7), 60.0)
    job.rounds(5)
    assert [(found.kind, found.stage, found.nodes) for found in job.told] == [("stage", 1, ())]


def test_a_stage_that_always_had_more_work_is_told_with_its_size_and_never_as_slow_ranks() -> None:
    job = Job(stages=((0, 1, 2, 3), (4, 5, 6, 7)))
    job.slower((4, 5, 6, 7), 40.0)
    job.rounds(60)
    (found,) = job.told
    verdict = verdict_of(found, rounds=5, round_s=10.0)
    assert (verdict.rule, verdict.ranks, verdict.nodes, verdict.only_told) == ("uneven_stages", (4, 5, 6, 7), (), True)
    assert "has 1.40 times the work of the other stages (140 ms a step against 100 ms)" in verdict.sentence


def test_longer_communication_blames_a_node_only_if_its_link_says_so(job: Job) -> None:
    lossy = Job()
    lossy.rounds(30)
    job.comm_ms = lossy.comm_ms = 90.0
    job.rounds(5, [Seen("n3", "network", "the link runs at 100 of 400 Gb/s")])
    lossy.rounds(5, [Seen("n3", "fabric", "4 % of packets are sent again")])
    assert [(found.kind, found.nodes) for found in job.told] == [("group", ("n3",))]
    assert not lossy.told  # others' traffic comes and goes
    lossy.rounds(8, [Seen("n3", "fabric", "4 % of packets are sent again")])
    assert [(found.kind, found.nodes) for found in lossy.told] == [("group", ())]


def test_a_drift_is_told_though_no_round_is_slower_than_those_before_it() -> None:
    job = Job()
    for _ in range(400):
        job.slower((0, 1), 0.06)
        job.rounds(1)
    (found,) = job.told
    assert found.is_drift and (found.kind, found.nodes) == ("node", ("n0",))
    assert sentence(found).startswith("steps have slowly become longer: ")


def test_an_attempt_that_is_slower_than_the_one_before_is_told(job: Job) -> None:
    job.attempt, job.step = 1, 0
    job.slower(range(8), 50.0)
    job.rounds(20)
    assert [(found.kind, found.cost.usual_ms) for found in job.told] == [("all", 120.0)]


def test_steps_that_were_never_as_planned_are_told_once() -> None:
    job = Job(reported=Reported(tokens_per_s=800.0, planned_tokens_per_s=1000.0))
    job.rounds(100)
    (found,) = job.told
    assert found.kind == "plan" and found.cost.lost == pytest.approx(0.2)
    assert sentence(found) == "steps take 120 ms, planned were 96 ms: 20% of throughput, 38.4 rank-hours a day"


@pytest.mark.parametrize("nonsense", [Reported(planned_step_s=float("nan")), Reported(tokens_per_s=1.0), Reported()])
def test_a_plan_that_is_none_says_nothing(nonsense: Reported) -> None:
    job = Job(reported=nonsense)
    job.rounds(40)
    assert not job.told


def test_where_hosts_see_no_waits_only_a_sensor_names_a_node() -> None:
    alone, job = Job(on_gpus=True), Job(on_gpus=True)
    for each, seen in ((alone, []), (job, [LATE])):
        each.rounds(30)
        each.slower((2, 3), 60.0)
        each.rounds(12, seen)
    assert [(found.kind, found.nodes) for found in alone.told] == [("all", ())]
    assert [(found.kind, found.nodes, found.is_blind) for found in job.told] == [("node", ("n1",), True)]
    assert verdict_of(job.told[0], rounds=5, round_s=10.0).only_told


def test_a_quota_that_lets_hardly_anything_run_is_named_though_no_step_is_made(job: Job) -> None:
    waits = {f"n{node}": Standing(since_step_s=30.0, waiting_s=None if node == 1 else 30.0) for node in range(4)}
    job.rounds(2, seen_on({"n1": CpuShort(0.99)}, []), standing=waits)
    (found,) = job.told
    assert found.is_standing and (found.nodes, found.cause) == (("n1",), "cpu_limit")
    verdict = verdict_of(found, rounds=2, round_s=10.0)
    assert verdict.rule == "held_up" and not verdict.only_told
    assert verdict.sentence == (
        "node n1 holds the others up; no step has been made for 30 s; on n1, the CPU limit of their cgroup holds ranks back "
        "99 % of the time"
    )


def test_where_all_wait_the_node_whose_limit_may_be_why_is_told_and_never_acted_on(job: Job) -> None:
    waits = {f"n{node}": Standing(since_step_s=30.0, waiting_s=30.0) for node in range(4)}
    job.rounds(2, [LATE], standing=waits)
    (found,) = job.told
    assert found.nodes == ("n1",) and verdict_of(found, rounds=2, round_s=10.0).only_told


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("seen, told", [([LATE], [(2,)]), ([], [])])
def test_a_rank_that_makes_a_step_every_few_seconds_is_named_in_two_rounds(
    job: Job, steps: int, seen: list[Seen], told: list[tuple[int, ...]]
) -> None:
    job.own_ms[2] = 8000.0
    job.steps = steps
    job.rounds(1, seen)
    assert not job.told
    job.rounds(1, seen)
    assert [found.ranks for found in job.told] == told
    job.own_ms[2], job.steps = 100.0, STEPS
    job.rounds(6)
    assert [found.ranks for found in job.ended] == told


@pytest.mark.parametrize("seen", [[], [Seen("n0", "cpu_limit", "held")], [Seen("n1", "storage", "slow")]])
def test_a_wait_that_no_limit_explains_is_left_to_who_looks_at_hangs(job: Job, seen: list[Seen]) -> None:
    waits = {f"n{node}": Standing(since_step_s=300.0, waiting_s=None if node == 1 else 300.0) for node in range(4)}
    job.rounds(10, seen, standing=waits)
    assert not job.told


def test_only_peers_and_a_sensor_together_may_be_acted_on(job: Job) -> None:
    job.slower((2, 3), 60.0)
    job.rounds(5, [LATE])
    sure = job.told[0]
    assert not verdict_of(sure, rounds=5, round_s=10.0).only_told
    for doubt in (
        msgspec.structs.replace(sure, cause=""),
        msgspec.structs.replace(sure, cause="data"),
        msgspec.structs.replace(sure, cause="cpu_busy"),
        msgspec.structs.replace(sure, far_from_peers=False),
        msgspec.structs.replace(sure, kind="all"),
        msgspec.structs.replace(sure, is_blind=True),
    ):
        assert verdict_of(doubt, rounds=5, round_s=10.0).only_told
