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
