"""When steps take many times what they took: rounds of ten seconds, of jobs in trouble and of healthy ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from robust_run.tracer.pace.slowing import MOST, Slowing
from robust_run.tracer.pace.types import MOST_STEPS, STEPS_NEEDED, CpuShort, NodePace, RankPace, TimedPace

ROUND_MS = 10_000.0
Steps = Sequence[float]


def told(
    lengths_ms: Steps, slow: Sequence[int] = (0, 1), short: Mapping[str, CpuShort] = {}, attempt: int = 0
) -> list[str]:
    """Return what is said of a job of two ranks with steps of these lengths; ranks `slow` need them for themselves."""
    known, said, made_ms, through = Slowing(), [], 0.0, 0
    while through < len(lengths_ms):
        made_ms += ROUND_MS
        while through < len(lengths_ms) and sum(lengths_ms[: through + 1]) <= made_ms:
            through += 1
        if made_ms > sum(lengths_ms):
            through = len(lengths_ms)
        if through < STEPS_NEEDED + 1:
            continue
        whole = tuple(lengths_ms[max(1, through - MOST_STEPS) : through])
        short_ms = min(whole) / 2
        ranks = tuple(
            RankPace(rank, "a", through - len(whole) + 1, whole if rank in slow else (short_ms,) * len(whole), whole)
            for rank in (0, 1)
        )
        known, line = known.hear([NodePace(attempt, "a", made_ms - ROUND_MS, made_ms, ranks)], short)
        said += [line] if line else []
    return said


def test_steps_that_take_eighty_times_as_long_are_said_once_and_once_more_when_that_is_over() -> None:
    begun, over = told([50.0] * 400 + [4100.0] * 20 + [50.0] * 400)
    assert begun.startswith("steps have taken 4.1 s instead of 0.05 s for ") and begun.endswith(
        "; all ranks are slower"
    )
    assert over.startswith("steps take 0.05 s again; they were slow for ")


def test_it_takes_no_longer_than_half_a_minute() -> None:
    (line,) = told([50.0] * 400 + [4000.0] * 6)
    assert "for 20 s" in line or "for 24 s" in line


def test_who_is_slower_by_itself_is_named() -> None:
    lengths = [50.0] * 400 + [4000.0] * 8
    assert told(lengths, slow=(1,))[0].endswith("; rank 1 is slower")
    assert "no rank is slower by itself" in told(lengths, slow=())[0]


def test_on_gpus_it_is_their_clocks_that_say_who_is_slower() -> None:
    whole = (50.0,) * 40 + (4000.0,) * 20
    hosts = tuple(
        RankPace(rank, "a", 441, whole, whole) for rank in (0, 1)
    )  # calls return at once: all looks like work
    gpus = tuple(
        TimedPace(rank, "a", 446, 2, ((45.0,) * 18 + (3900.0 if rank else 45.0,) * 9), (50.0,) * 18 + (4000.0,) * 9)
        for rank in (0, 1)
    )
    known = Slowing(attempt=0, through=440, lengths_ms=(50.0,) * 100)
    assert known.hear([NodePace(0, "a", 0.0, 10.0, hosts, gpus)])[1].endswith("; rank 1 is slower")
    assert known.hear([NodePace(0, "a", 0.0, 10.0, hosts, gpus[:1])])[1].endswith("; all ranks are slower")


def test_where_cpu_time_is_short_is_named() -> None:
    lengths = [50.0] * 400 + [4000.0] * 8
    short = {"a": CpuShort(0.81), "b": CpuShort(0.0, 99.0)}
    assert told(lengths, short=short)[0].endswith(
        "; on a the CPU limit of their cgroup holds ranks back 81 % of the time"
    )
    assert told(lengths, short={"b": short["b"]})[0].endswith("; on b work waits for a CPU 99 % of the time")
    assert told(lengths, short={"a": CpuShort(0.01, 10.0)})[0].endswith("all ranks are slower")


def of_two_kinds(number: int) -> float:
    return 50.0 if number % 2 else 2000.0


HEALTHY: dict[str, Callable[[int], float]] = {
    "even steps": lambda _: 50.0,
    "one long step": lambda number: 60_000.0 if number == 300 else 50.0,
    "an evaluation every 100 steps": lambda number: 30_000.0 if number % 100 == 0 else 50.0,
    "a checkpoint every 5 steps": lambda number: 8_000.0 if number % 5 == 0 else 100.0,
    "three long steps in a row": lambda number: 20_000.0 if 300 <= number < 303 else 50.0,
    "two optimizers": of_two_kinds,
    "slow first steps": lambda number: 5_000.0 if number < 40 else 50.0,
    "sequences that grow": lambda number: 50.0 * 1.01**number,
    "steps of ten times a few milliseconds": lambda number: 4.0 if number < 400 else 60.0,
    "nine times as long": lambda number: 200.0 if number < 300 else 1_800.0,
    "lengths as chance has it": lambda number: 100.0 * 2 ** random.Random(number).uniform(-2, 2),
    "a heavy tail": lambda number: 50.0 * random.Random(number).paretovariate(0.9),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_of_healthy_jobs_nothing_is_said(name: str) -> None:
    assert told([HEALTHY[name](number) for number in range(700)]) == []


def test_what_comes_and_goes_is_not_said_for_ever() -> None:
    said = told(([50.0] * 400 + [4000.0] * 12) * 12 + [50.0] * 400)
    assert len(said) == 2 * MOST


def test_another_attempt_begins_anew_and_empty_rounds_say_nothing() -> None:
    known = Slowing(attempt=3, through=100, lengths_ms=(50.0,) * 100)
    known, line = known.hear([])
    assert (known.attempt, line) == (-1, "")
    pace = RankPace(0, "a", 2, (4000.0,) * 30, (4000.0,) * 30)
    known, line = Slowing(attempt=3, through=100, lengths_ms=(50.0,) * 100).hear([NodePace(4, "a", 0.0, 10.0, (pace,))])
    assert (known.attempt, known.through, line) == (4, 31, "")
