"""After a crash: rings are believed over exits only where gloo has failed a victim."""

from __future__ import annotations

import msgspec
import pytest
from tracer.verdict.scenes import FAULTS, LAYOUTS, data_parallel, ended, faulty

from robust_run.health.types import Finding
from robust_run.tracer.types import WENT_ON, Scene
from robust_run.tracer.verdict import RankPatience, look, post_mortem

LOST_PEER = Finding(kind="peer_connection", line="RuntimeError: Connection closed by peer")
ABORTED = Finding(kind="native_crash", line="Fatal Python error: Aborted")
SIZES = Finding(
    kind="exception",
    line="RuntimeError: [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes",
    exception="RuntimeError",
    message="[enforce fail at pair.cc:446] op.preamble.length <= op.nbytes",
)
OWN = Finding(kind="exception", line="ValueError: bad batch", exception="ValueError", message="bad batch")


def dead(fault: str, rank: int, first: int, finding: Finding | None, code: int = -6, layout: str = "TP2xDP2") -> Scene:
    """A fault of `rank`; `first` fails at once, all others lose it as their peer."""
    scene = faulty(LAYOUTS[layout], FAULTS[fault], rank, 1).scene(waited_s=0.2)
    scene = ended(scene, first, code, scene.at_s, finding=finding)
    for sight in scene.ranks:
        if sight.exit_code is None:
            scene = ended(scene, sight.rank, 1, scene.at_s + 0.1, finding=LOST_PEER)
    return scene


@pytest.mark.parametrize("fault", ["size", "dtype", "operation"])
@pytest.mark.parametrize("finding", [ABORTED, SIZES, LOST_PEER, None])
@pytest.mark.parametrize(("rank", "victim"), [(2, 3), (0, 1), (2, 2)])
def test_of_a_mismatch_the_rank_that_differs_is_named_not_the_one_that_gloo_failed(
    fault, finding, rank, victim
) -> None:
    found = post_mortem(dead(fault, rank, victim, finding))
    assert found is not None
    assert (found.kind, found.ranks) == ("mismatch", (rank,)), found.sentence
    assert (
        look(dead(fault, rank, victim, finding), RankPatience()).verdict.ranks == (rank,)
        if finding != LOST_PEER
        else True
    )


def test_of_two_ranks_whose_calls_met_gloo_ends_one_and_both_calls_are_told() -> None:
    """Neither is in the majority, and no history tells."""
    scene = faulty(data_parallel(2), FAULTS["size"], 1, 1, step=1).scene(waited_s=0.2)
    ranks = [msgspec.structs.replace(one, exit_code=-6, ended_at_s=scene.at_s) for one in scene.ranks]
    for finding, ranks_named in ((ABORTED, None), (msgspec.structs.replace(ABORTED, trouble="mismatch"), (0, 1))):
        ranks[0] = msgspec.structs.replace(ranks[0], finding=finding)
        found = post_mortem(msgspec.structs.replace(scene, ranks=tuple(ranks)))
        assert (found.ranks if found is not None else None) == ranks_named
    assert found is not None
    assert (found.kind, found.confidence, found.over_evicted) == ("mismatch", "low", (0, 1))
    assert "make different calls" in found.sentence


@pytest.mark.parametrize("fault", ["size", "sleep"])
def test_an_exception_of_the_users_own_stands(fault: str) -> None:
    assert post_mortem(dead(fault, 2, 3, OWN, code=1)) is None
    found = look(dead(fault, 2, 3, OWN, code=1), RankPatience()).verdict
    assert found is not None and (found.kind, found.ranks) == ("crash", (3,))
    assert "bad batch" in found.sentence


def test_a_process_that_was_killed_stands() -> None:
    assert post_mortem(dead("sleep", 2, 2, None, code=-9)) is None
    found = look(dead("sleep", 2, 2, None, code=-9), RankPatience()).verdict
    assert found is not None and (found.kind, found.ranks, found.rule) == ("crash", (2,), "exited")


def test_who_only_lost_a_peer_is_not_the_cause() -> None:
    scene = dead("sleep", 2, 1, OWN, code=1)
    found = look(scene, RankPatience()).verdict
    assert found is not None and found.ranks == (1,)


def test_a_rank_that_left_early_is_named_although_others_failed() -> None:
    scene = faulty(LAYOUTS["DP4"], FAULTS["exit 0"], 1, 1).scene(waited_s=0.2)
    for rank in (0, 2, 3):
        scene = ended(scene, rank, 1, scene.at_s, finding=LOST_PEER)
    found = post_mortem(scene)
    assert found is not None
    assert (found.kind, found.rule, found.ranks) == ("desync", "early_exit", (1,))


def test_after_a_time_limit_of_the_communication_the_absent_rank_is_named() -> None:
    scene = faulty(LAYOUTS["DP4"], FAULTS["sleep"], 2, 1).scene(waited_s=60.0)
    for rank in (0, 1, 3):
        scene = ended(scene, rank, 1, scene.at_s, finding=LOST_PEER)
    found = post_mortem(ended(scene, 2, -15, scene.at_s + 1))
    assert found is not None and (found.kind, found.ranks) == ("hang", (2,))


def test_a_crash_of_its_own_in_native_code_adds_nothing() -> None:
    assert post_mortem(dead("sleep", 2, 2, ABORTED, code=-6)) is None


def test_that_calls_failed_is_no_doubt_where_nobody_went_on() -> None:
    scene = dead("size", 2, 3, ABORTED)
    ranks = [
        msgspec.structs.replace(sight, trace=msgspec.structs.replace(sight.trace, doubts=(WENT_ON,)))
        for sight in scene.ranks
        if sight.trace is not None
    ]
    found = post_mortem(msgspec.structs.replace(scene, ranks=tuple(ranks)))
    assert found is not None
    assert (found.kind, found.ranks, found.proven) == ("mismatch", (2,), True)


# --- torch's time limit has ended a wait


def timed_out(limit_s: float, waited_s: float, stays_s: float = 6.0) -> tuple[Scene, Scene]:
    """Rank 2 sleeps; the others' calls fail after they waited, and it is ended later. Also what was seen while all lived."""
    world = faulty(LAYOUTS["DP4"], FAULTS["sleep"], 2, len(LAYOUTS["DP4"].step(2, 0)) - 1)
    alive, scene = world.scene(waited_s=12.0), world.scene(waited_s=waited_s + stays_s)
    ranks = []
    for sight in scene.ranks:
        assert sight.trace is not None
        groups = tuple(msgspec.structs.replace(group, limit_s=limit_s) for group in sight.trace.groups)
        last = sight.trace.ops[-1]
        if sight.rank != 2:
            assert last.waiting_at_s is not None
            last = msgspec.structs.replace(last, state="failed", done_at_s=last.waiting_at_s + waited_s)
        trace = msgspec.structs.replace(sight.trace, groups=groups, ops=(*sight.trace.ops[:-1], last))
        ranks.append(msgspec.structs.replace(sight, trace=trace))
    scene = msgspec.structs.replace(scene, ranks=tuple(ranks))
    for rank in (0, 1, 3):
        scene = ended(scene, rank, 1, scene.at_s - stays_s + 1, finding=LOST_PEER)
    return alive, ended(scene, 2, -15, scene.at_s - 1)


def test_who_was_missed_until_torchs_limit_is_told_with_its_place_and_how_long_they_waited() -> None:
    alive, dead_now = timed_out(limit_s=25.0, waited_s=25.0)
    found = post_mortem(dead_now, alive)
    assert found is not None
    assert (found.kind, found.rule, found.ranks) == ("hang", "never_joined", (2,))
    assert found.sentence.startswith("rank 2 never joined all_reduce #")
    assert found.sentence.endswith(
        " of the world (3 ranks waited for 25.0 s, until torch's time limit of 25 s ended that); when last seen it was in "
        "data.py:88 get, asleep"
    )
    assert found.where == "data.py:88 get"
    assert {round(wait.since_s) for wait in found.waits} == {25}
    assert "31" not in " ".join(found.evidence), "nobody waits any more"


def test_of_a_rank_that_was_never_looked_at_no_place_is_told() -> None:
    found = post_mortem(timed_out(limit_s=25.0, waited_s=25.0)[1])
    assert found is not None
    assert found.sentence.endswith("until torch's time limit of 25 s ended that); where it was is not known")


def test_calls_that_failed_before_torchs_limit_are_not_told_to_have_reached_it() -> None:
    alive, dead_now = timed_out(limit_s=1800.0, waited_s=25.0)
    found = post_mortem(dead_now, alive)
    assert found is not None
    assert (
        "(3 ranks waited for 25.0 s, then their calls failed); when last seen it was in data.py:88 get"
        in found.sentence
    )


def test_what_was_seen_of_another_attempt_says_nothing() -> None:
    alive, dead_now = timed_out(limit_s=25.0, waited_s=25.0)
    found = post_mortem(dead_now, msgspec.structs.replace(alive, attempt=3))
    assert found is not None
    assert "where it was is not known" in found.sentence


def test_a_rank_that_went_on_after_it_was_seen_is_not_told_to_be_where_it_was() -> None:
    """It has made calls since: what it was in then is not why it is missed now."""
    alive, dead_now = timed_out(limit_s=25.0, waited_s=25.0)
    alive = msgspec.structs.replace(alive, at_s=0.001)
    found = post_mortem(dead_now, alive)
    assert found is not None
    assert "where it was is not known" in found.sentence


def test_what_gloo_itself_says_of_its_limit_goes_before_what_is_known_of_the_group() -> None:
    """A barrier has a limit of its own."""
    alive, dead_now = timed_out(limit_s=1800.0, waited_s=30.0)
    said = Finding(
        kind="peer_connection", line="RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms"
    )
    found = post_mortem(ended(dead_now, 0, 1, dead_now.at_s - 5, finding=said), alive)
    assert found is not None
    assert "(3 ranks waited for 30.0 s, until torch's time limit of 30 s ended that)" in found.sentence
