"""Who is slow, and who is not: a bulk-synchronous job is simulated, rounds are judged."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.tracer.pace.judge import judge_round
from robust_run.tracer.pace.measure import timed_pace_of
from robust_run.tracer.pace.rounds import Rounds
from robust_run.tracer.pace.types import RankPace, RoundResult
from robust_run.tracer.types import Group
from tests.tracer.pace.simulated_steps import Job, Work, steady, verdicts


def slow(ranks: tuple[int, ...], by: float = 1.6, usual: Work = steady) -> Work:
    return lambda rank, step, chance: usual(rank, step, chance) * (by if rank in ranks else 1.0)


def jitter(rank: int, step: int, chance: random.Random) -> float:
    return steady(rank, step, chance) + (120.0 if rank == 2 and step % 3 == 0 else 0.0)


def checkpoint(rank: int, step: int, chance: random.Random) -> float:
    return steady(rank, step, chance) + (1500.0 if rank == 0 and step % 40 == 0 else 0.0)


def uneven(rank: int, step: int, chance: random.Random) -> float:
    return 50.0 * chance.lognormvariate(0.0, 0.5)


def heavy_tail(rank: int, step: int, chance: random.Random) -> float:
    return 10.0 + chance.expovariate(1 / 50.0)


def two_lengths(rank: int, step: int, chance: random.Random) -> float:
    return steady(rank, step, chance) * (3.0 if chance.random() < 0.25 else 1.0)


def garbage_collection(rank: int, step: int, chance: random.Random) -> float:
    return steady(rank, step, chance) + (60.0 if (step + 3 * rank) % 9 == 0 else 0.0)


def everybody(rank: int, step: int, chance: random.Random) -> float:
    return steady(rank, step, chance) + (1000.0 if step > 100 else 0.0)


@pytest.mark.parametrize("world", [2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("on_gpus", [False, True])
def test_a_rank_that_is_always_slow_is_named_after_five_rounds(world: int, seed: int, on_gpus: bool) -> None:
    culprit = (0, world // 2, world - 1)[seed]
    job = Job(world, slow((culprit,)), seed=seed, on_gpus=on_gpus)
    known = job.run(4)
    assert known.verdict() is None
    verdict = job.run(1, known).verdict()
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.confidence, verdict.rule) == ("slow", (culprit,), "high", "slow_rank")


@pytest.mark.parametrize("steps", [20, 33, 64])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("on_gpus", [False, True])
def test_a_rank_that_is_slow_in_every_third_step_is_named(steps: int, seed: int, on_gpus: bool) -> None:
    verdict = Job(4, jitter, per_node=2, steps=steps, seed=seed, on_gpus=on_gpus).run(5 + on_gpus).verdict()
    assert verdict is not None and verdict.ranks == (2,)
    assert verdict.nodes == ("gpu-01",)


def test_two_slow_ranks_are_both_named() -> None:
    verdict = Job(8, slow((1, 6)), per_node=4).run(5).verdict()
    assert verdict is not None and verdict.ranks == (1, 6)


def test_a_slow_rank_is_found_among_uneven_data() -> None:
    verdict = Job(8, slow((5,), by=2.2, usual=uneven)).run(6).verdict()
    assert verdict is not None and verdict.ranks == (5,)


@pytest.mark.parametrize("world, per_node", [(4, 2), (16, 8), (24, 8)])
def test_a_node_all_of_whose_ranks_are_slow_is_at_fault_itself(world: int, per_node: int) -> None:
    culprits = tuple(range(per_node, 2 * per_node))
    verdict = Job(world, slow(culprits, by=1.5), per_node=per_node).run(5).verdict()
    assert verdict is not None
    assert (verdict.rule, verdict.ranks, verdict.nodes) == ("slow_node", culprits, ("gpu-01",))
    assert verdict.sentence.startswith(f"node gpu-01 is slow: its {per_node} ranks need 1.")


def test_the_only_node_is_never_at_fault_for_some_of_its_ranks() -> None:
    verdict = Job(4, slow((0, 1)), per_node=4).run(5).verdict()
    assert verdict is not None and verdict.rule == "slow_rank" and verdict.ranks == (0, 1)


@pytest.mark.parametrize(
    "work", [steady, checkpoint, uneven, heavy_tail, two_lengths, garbage_collection, everybody, slow((1,), by=1.15)]
)
@pytest.mark.parametrize(
    "world, steps, rounds, stride",
    [
        (2, 64, 150, 0),
        (4, 64, 100, 0),
        (8, 20, 150, 0),
        (8, 64, 60, 0),
        (2, 64, 40, 1),
        (8, 20, 20, 1),
        (4, 100, 20, 4),
    ],
)
def test_what_every_job_does_at_times_is_no_fault(work: Work, world: int, steps: int, rounds: int, stride: int) -> None:
    job = Job(world, work, 2, steps, seed=world + steps, on_gpus=stride > 0, stride=stride or 1)
    assert verdicts(job, rounds) == 0


def test_hosts_alone_do_not_tell_which_gpu_is_slow() -> None:
    assert Job(4, slow((2,)), on_gpus=True, timed=()).run(8).verdict() is None
    verdict = Job(4, slow((2,)), on_gpus=True).run(5).verdict()
    assert verdict is not None and verdict.ranks == (2,)
    assert verdict.evidence[1] == "own times are those of the GPUs, without what they waited for peers"


@pytest.mark.parametrize("timed", [(0, 1, 2), (3,), (1,)])
def test_ranks_are_compared_by_one_clock_only(timed: tuple[int, ...]) -> None:
    # The host of rank 3 sees as its own what all ranks wait for rank 2: beside the times of GPUs it would look slow.
    assert verdicts(Job(4, slow((2,), by=3.0), per_node=2, on_gpus=True, timed=timed), 20) == 0


@pytest.mark.parametrize("stride", [2, 4, 8])
def test_where_one_in_several_steps_is_timed_a_slow_rank_is_found(stride: int) -> None:
    verdict = Job(4, slow((1,)), per_node=2, steps=200, on_gpus=True, stride=stride).run(6).verdict()
    assert verdict is not None and verdict.ranks == (1,)


def test_ranks_that_time_different_shares_of_their_steps_are_compared_in_those_that_all_timed() -> None:
    job = Job(2, slow((1,)), per_node=1, steps=200, on_gpus=True)
    job.advance()
    often = timed_pace_of(job.phases[0], rank=0, node="a", round_s=4.0)
    seldom = timed_pace_of([one for one in job.phases[1] if one.step % 4 == 0], rank=1, node="b", round_s=4.0)
    assert often is not None and seldom is not None
    assert (often.stride, seldom.stride) == (1, 4)
    hosts = [RankPace(rank, "ab"[rank], 2, (50.0,) * 30, (60.0,) * 30) for rank in range(2)]
    result = judge_round(hosts, [], [], began_s=0.0, ended_s=100.0, timed=[often, seldom])
    assert result.steps == 0  # the newest 64 of the one and every fourth of the other: too few that both know
    often = msgspec.structs.replace(seldom, rank=0, own_ms=tuple(own / 1.6 for own in seldom.own_ms))
    result = judge_round(hosts, [], [], began_s=0.0, ended_s=100.0, timed=[often, seldom])
    assert result.steps >= 40 and result.timed and [one.rank for one in result.suspects] == [1]
    assert result.suspects[0].since_s == pytest.approx(100.0 - sum(seldom.step_ms) * 4 / 1e3)


def test_too_few_new_steps_of_gpus_are_waited_for_and_not_replaced_by_those_of_hosts() -> None:
    job = Job(
        4, slow((1,)), steps=20, on_gpus=True
    )  # the GPUs are two steps behind: 18 of them are new in the first round
    known = job.run(1)
    assert known.results == ()
    assert all(result.timed for result in job.run(10, known).results)


PIPELINE = [Group(name="world", ranks=(0, 1, 2, 3)), Group(name="a", ranks=(0, 1)), Group(name="b", ranks=(2, 3))]


def test_an_uneven_pipeline_is_no_fault() -> None:
    job = Job(4, slow((2, 3), by=2.0), per_node=2, groups=PIPELINE, p2p_pairs=[(0, 2), (1, 3)])
    assert verdicts(job, 50) == 0
    assert judge_round([], [], [], began_s=0.0, ended_s=10.0).steps == 0


def test_within_an_uneven_pipeline_a_slow_rank_is_found() -> None:
    work = slow((3,), by=1.6, usual=slow((2, 3), by=2.0))
    job = Job(4, work, per_node=2, groups=PIPELINE, p2p_pairs=[(0, 2), (1, 3)])
    verdict = job.run(5).verdict()
    assert verdict is not None and verdict.ranks == (3,)


def test_steps_too_slow_for_a_round_accumulate_over_rounds() -> None:
    job = Job(4, slow((1,)), steps=8)
    known = job.run(3)
    assert len(known.results) == 1 and known.results[0].steps == 24
    assert len(job.run(2, known).results) == 1
    assert len(job.run(3, known).results) == 2


def test_a_step_is_judged_only_once() -> None:
    job = Job(4, slow((1,)))
    known = job.run(1)
    again = known.hear(job.paces(), job.groups, [])
    assert again == known


def test_another_attempt_begins_anew() -> None:
    known = Job(4, slow((1,))).run(5)
    assert known.verdict() is not None
    result = msgspec.structs.replace(known.results[-1], attempt=2)
    after = known.add(result)
    assert (after.attempt, after.verdict()) == (2, None)


def test_one_round_of_five_may_be_missed_but_not_the_newest() -> None:
    job = Job(8, slow((3,)), seed=4)
    known = job.run(5)
    missed = [msgspec.structs.replace(result, suspects=()) for result in known.results]
    one = (known.results[0], missed[1], *known.results[2:])
    verdict = Rounds(1, one).verdict()
    assert verdict is not None and verdict.confidence == "medium" and "4 of 5 rounds" in verdict.sentence
    assert Rounds(1, (*known.results[:4], missed[4])).verdict() is None
    assert Rounds(1, (missed[0], *one[1:])).verdict() is None


def test_a_recovered_rank_is_not_named() -> None:
    job = Job(4, lambda rank, step, chance: steady(rank, step, chance) * (1.6 if rank == 1 and step < 300 else 1.0))
    known = job.run(5)
    assert known.results[-1].suspects == () or known.results[-1].suspects[0].share < 1.0
    assert job.run(1, known).verdict() is None


def test_the_sentence_says_who_by_how_much_and_for_how_long() -> None:
    job = Job(8, lambda rank, step, chance: 82.0 if rank == 2 else 51.0, per_node=2)
    paces = [msgspec.structs.replace(p, began_s=0.0, ended_s=10.0) for p in job.paces()]
    known = Rounds().hear(paces, job.groups, [])
    for number in range(5):
        job.advance()
        times = {"began_s": 10.0 * number, "ended_s": 10.0 * (number + 1)}
        known = known.hear([msgspec.structs.replace(p, **times) for p in job.paces()], job.groups, [])
    verdict = known.verdict()
    assert verdict is not None
    assert verdict.sentence == (
        "rank 2 (node gpu-01) is slow: its own work takes 1.61 times that of its peers (82 ms against 51 ms) "
        "in 100 % of steps, 5 rounds of 10 s in a row"
    )
    assert verdict.evidence[0] == "a step takes 92.0 ms, 31.0 ms less without what is slow (34%)"


def test_the_onset_is_the_first_slow_step() -> None:
    job = Job(4, lambda rank, step, chance: steady(rank, step, chance) * (2.0 if rank == 3 and step > 100 else 1.0))
    job.advance()
    known = job.run(0).hear(job.paces(), job.groups, [])
    job.advance()
    begun_s = job.marks[3][100 - 130].at_s  # the end of step 100; the newest is 129
    known = known.hear(job.paces(), job.groups, [])
    verdict = job.run(5, known).verdict()
    assert verdict is not None and verdict.onset_s is not None
    assert verdict.onset_s <= job.marks[0][-1].at_s
    assert known.results[-1].suspects[0].since_s == pytest.approx(begun_s, abs=0.01)


@settings(max_examples=30, deadline=None)
@given(world=st.integers(2, 9), culprit=st.integers(0, 8), by=st.floats(1.7, 20.0), seed=st.integers(0, 99))
def test_whoever_is_clearly_slow_is_named_and_nobody_else(world: int, culprit: int, by: float, seed: int) -> None:
    verdict = Job(world, slow((culprit % world,), by=by), per_node=3, seed=seed).run(5).verdict()
    assert verdict is not None and verdict.ranks == (culprit % world,)


_numbers = st.lists(st.floats(), min_size=0, max_size=70).map(tuple)


@given(
    paces=st.lists(
        st.builds(
            RankPace,
            rank=st.integers(-2, 5),
            node=st.just("a"),
            first_step=st.integers(),
            own_ms=_numbers,
            step_ms=_numbers,
        ),
        max_size=6,
    )
)
def test_whatever_agents_say_a_round_is_judged(paces: list[RankPace]) -> None:
    result = judge_round(paces, [], [(0, 1)], began_s=0.0, ended_s=10.0)
    assert isinstance(result, RoundResult)
