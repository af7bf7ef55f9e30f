"""Chains of waits across roles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.orchestrator.rules.waits import QueueNow, awaited, chains, line_of, lines_of

NOW_S = 100.0


def said(standings: dict[str, str] | None = None, **queues: QueueNow) -> list[str]:
    return [line_of(chain) for chain in chains(queues, NOW_S, standings)]


def test_the_trainer_waits_for_the_rollout_that_has_worked_for_longest() -> None:
    assert said(
        prompts=QueueNow(leases={"rollout/2:0": (1, 98.0), "rollout/3:0": (2, 56.0)}, fillers={"trainer/0:0": 50.0}),
        samples=QueueNow(takers={"trainer/0:0": 55.0}, fillers={"rollout/2:0": 97.0, "rollout/3:0": 54.0}),
    ) == [
        "trainer/0:0 has been waiting for 45 s for an item at queue samples"
        " <- rollout/3:0, which fills it, has worked on 2 items of prompts for 44 s"
    ]


def test_a_chain_goes_through_those_who_wait_themselves() -> None:
    (line,) = said(
        answers=QueueNow(takers={"trainer/0:0": 40.0}, fillers={"reward/0:0": 39.0}),
        samples=QueueNow(takers={"reward/0:0": 95.0}, fillers={"rollout/0:0": 30.0}),
        prompts=QueueNow(leases={"rollout/0:0": (1, 30.0)}),
    )
    assert line.endswith(
        "<- reward/0:0 has been waiting for 5 s for an item at queue samples"
        " <- rollout/0:0, which fills it, has worked on 1 item of prompts for 70 s"
    )


def test_one_that_does_nothing_that_queues_know_of_is_named_with_its_last_word() -> None:
    (line,) = said(samples=QueueNow(takers={"trainer/0:0": 40.0}, fillers={"rollout/0:0": 39.0}))
    assert line.endswith("<- rollout/0:0, which fills it, did so 61 s ago, and waits at no queue")


def test_a_full_queue_waits_for_who_empties_it() -> None:
    (line,) = said(samples=QueueNow(putters={"rollout/0:0": 40.0}, drainers={"trainer/0:0": 39.0}))
    assert line.endswith(
        "for room at queue samples <- trainer/0:0, which empties it, did so 61 s ago, and waits at no queue"
    )


def test_a_queue_full_of_what_was_kept_says_what_to_do() -> None:
    (line,) = said(samples=QueueNow(putters={"rollout/0:0": 40.0}, drainers={"trainer/0:0": 99.0}, kept_share=0.98))
    assert line == (
        "rollout/0:0 has been waiting for 60 s for room at queue samples: 98% of its room holds items that were kept;"
        " release() those that no checkpoint goes back to, or raise queue_bytes"
    )


def test_a_queue_that_nobody_fills_yet_says_so_and_short_waits_say_nothing() -> None:
    assert said(samples=QueueNow(takers={"trainer/0:0": 40.0}))[0].endswith("<- nobody has put anything into it yet")
    assert said(samples=QueueNow(takers={"trainer/0:0": 95.0}, fillers={"rollout/0:0": 39.0})) == []


def test_workers_that_wait_for_each_other_are_a_circle_that_is_named_and_ends() -> None:
    assert said(
        a=QueueNow(takers={"x/0:0": 10.0}, fillers={"y/0:0": 5.0}),
        b=QueueNow(takers={"y/0:0": 20.0}, fillers={"x/0:0": 5.0}),
    ) == [
        "x/0:0 has been waiting for 90 s for an item at queue a <- y/0:0 has been waiting for 80 s for an item at queue b"
        " <- x/0:0, which fills it: these 2 wait for each other in a circle",
        "y/0:0 has been waiting for 80 s for an item at queue b <- x/0:0 has been waiting for 90 s for an item at queue a"
        " <- y/0:0, which fills it: these 2 wait for each other in a circle",
    ]


def test_one_that_waits_for_a_circle_is_not_in_it() -> None:
    line = said(
        a=QueueNow(takers={"x/0:0": 10.0}, fillers={"y/0:0": 5.0}),
        b=QueueNow(takers={"y/0:0": 20.0}, fillers={"z/0:0": 5.0}),
        c=QueueNow(putters={"z/0:0": 30.0}, drainers={"y/0:0": 5.0}),
    )[0]
    assert line.endswith("<- y/0:0, which empties it: these 2 wait for each other in a circle")


def test_one_that_waits_for_itself_is_told_so() -> None:
    (line,) = said(a=QueueNow(takers={"x/0:0": 10.0}, fillers={"x/0:0": 5.0}))
    assert line.endswith("at queue a <- only x/0:0 itself fills it")


def test_where_another_could_still_come_there_is_no_circle() -> None:
    line = said(
        a=QueueNow(takers={"x/0:0": 10.0}, fillers={"y/0:0": 5.0}),
        b=QueueNow(takers={"y/0:0": 20.0}, fillers={"x/0:0": 5.0, "z/0:0": 6.0}),
    )[0]
    assert line.endswith("<- z/0:0, which fills it, did so 94 s ago, and waits at no queue")


def test_nobody_waits_for_a_member_that_is_gone_while_another_works() -> None:
    samples = QueueNow(takers={"trainer/0:0": 40.0}, fillers={"rollout/0:0": 10.0, "rollout/1:0": 39.0})
    (line,) = said({"rollout/0": "done", "rollout/1": "running"}, samples=samples)
    assert line.endswith("<- rollout/1:0, which fills it, did so 61 s ago, and waits at no queue")


def test_where_all_that_fill_a_queue_are_away_the_one_that_comes_back_is_named() -> None:
    samples = QueueNow(takers={"trainer/0:0": 40.0}, fillers={"rollout/0:0": 10.0, "rollout/1:0": 39.0})
    (line,) = said({"rollout/0": "given_up", "rollout/1": "pausing"}, samples=samples)
    assert line.endswith("<- rollout/1:0, which fills it, is pausing; it did so 61 s ago")
    (line,) = said({"rollout/0": "given_up", "rollout/1": "given_up"}, samples=samples)
    assert line.endswith("<- rollout/0:0, which fills it, was given up; it did so 90 s ago")


def test_a_chain_that_a_longer_one_tells_is_not_said_again_and_those_alike_are_one_line() -> None:
    queues = {
        "answers": QueueNow(takers={"trainer/0:0": 40.0, "trainer/0:1": 60.0}, fillers={"reward/0:0": 39.0}),
        "samples": QueueNow(takers={"reward/0:0": 50.0}, fillers={"rollout/0:0": 30.0}),
    }
    assert lines_of(tuple(chains(queues, NOW_S))) == [
        "trainer/0:0 has been waiting for 60 s for an item at queue answers"
        " <- reward/0:0 has been waiting for 50 s for an item at queue samples"
        " <- rollout/0:0, which fills it, did so 70 s ago, and waits at no queue; so does trainer/0:1 (40 s)"
    ]


def test_who_is_awaited_is_at_the_end_of_a_chain_and_waits_for_nobody() -> None:
    queues = {
        "answers": QueueNow(takers={"trainer/0:0": 40.0}, fillers={"reward/0:0": 39.0}),
        "samples": QueueNow(takers={"reward/0:0": 45.0}, fillers={"rollout/0:0": 30.0, "rollout/1:0": 44.0}),
        "prompts": QueueNow(
            leases={"rollout/0:0": (1, 30.0)}, takers={"rollout/1:0": 46.0}, fillers={"trainer/0:0": 39.0}
        ),
    }
    assert awaited(queues, NOW_S) == {"rollout/0:0"}
    assert awaited(queues, 49.0) == set(), "nobody has waited for long"


def test_in_a_circle_and_where_nobody_is_known_nobody_is_awaited() -> None:
    circle = {
        "a": QueueNow(takers={"x/0:0": 10.0}, fillers={"y/0:0": 5.0}),
        "b": QueueNow(takers={"y/0:0": 10.0}, fillers={"x/0:0": 5.0}),
    }
    assert awaited(circle, NOW_S) == set()
    assert awaited({"a": QueueNow(takers={"x/0:0": 10.0})}, NOW_S) == set()


workers = st.sampled_from(["a/0:0", "b/0:0", "b/1:0", "c/0:0"])
moments = st.floats(0, NOW_S)
times = st.dictionaries(workers, moments, max_size=4)
queues_now = st.builds(
    QueueNow,
    takers=times,
    putters=times,
    fillers=times,
    drainers=times,
    leases=st.dictionaries(workers, st.tuples(st.integers(0, 3), moments), max_size=4),
)


@given(st.dictionaries(st.sampled_from("pqr"), queues_now, max_size=3))
def test_whatever_goes_on_there_are_few_lines_and_an_end(queues: dict[str, QueueNow]) -> None:
    lines = said(**queues)
    assert len(lines) <= 8 and all("\n" not in line for line in lines)
    assert len(lines_of(tuple(chains(queues, NOW_S)))) <= len(lines)
