"""What a node does that finds no controller: found, join, go on, wait or refuse. A table of cases, and what must hold for all."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.start.many.founding import Founding, Known, RunSeen, decide

MOVES = Known(moves=True, place="runs/.rendezvous-0", fewest=2, most=2, watched_s=9.0, patience_s=3.0, hold_s=4.0)
RUN = RunSeen(run_id="x", number=3, leader="n1:7", host="n1")
LIVES = msgspec.structs.replace(RUN, answers=True)
SILENT = msgspec.structs.replace(RUN, silent_s=9.0)
OVER = msgspec.structs.replace(RUN, over=True, leader="")


def known(**more: object) -> Known:
    return msgspec.structs.replace(MOVES, **more)


CASES: dict[str, tuple[Known, Founding]] = {
    # the controller cannot move: this node has its address
    "fixed: the first start": (known(moves=False), Founding(act="found")),
    "fixed: a return, whose old workers may live": (
        known(moves=False, remembers="x"),
        Founding(act="found", hold_s=4.0),
    ),
    "fixed: one node of 1:4": (known(moves=False, fewest=1, most=4, is_shared=False), Founding(act="found")),
    # it may move: nothing on record
    "the very first start": (known(), Founding(act="found")),
    "a fixed size is a majority of itself": (known(is_shared=False), Founding(act="found")),
    "elastic, in etcd or a network file system": (known(fewest=1, most=4), Founding(act="found")),
    "elastic, with a folder of unknown kind": (
        known(fewest=1, most=4, is_shared=False),
        Founding(act="found", needs=3),
    ),
    "the same with --found": (known(fewest=1, most=4, is_shared=False, forced=True), Founding(act="found")),
    "it remembers a run, the folder does not": (known(remembers="x"), Founding(act="wait")),
    "the same with --found ": (known(remembers="x", forced=True), Founding(act="found", hold_s=4.0)),
    "the place does not answer": (known(trouble="no answer"), Founding(act="wait")),
    "nor where --found is given": (known(trouble="no answer", forced=True), Founding(act="wait")),
    # a run that is over
    "after the end": (known(run=OVER), Founding(act="found", after=3)),
    "after the end, with a stale mark": (known(run=OVER, remembers="x"), Founding(act="found", after=3)),
    "after the end, at once": (known(run=OVER, watched_s=0.0), Founding(act="found", after=3)),
    "after the end, elastic": (known(run=OVER, fewest=1, most=4, is_shared=False), Founding(act="found", after=3)),
    "its directory was removed": (
        known(run=RunSeen(run_id="x", number=3, gone=True)),
        Founding(act="found", after=3, hold_s=4.0),
    ),
    # a run that is not over
    "its leader answers": (known(run=LIVES), Founding(act="join", where="n1:7")),
    "at the first look": (known(run=LIVES, watched_s=0.0), Founding(act="join", where="n1:7")),
    "to a node with a mark of another run": (known(run=LIVES, remembers="w"), Founding(act="join", where="n1:7")),
    "a moment of silence": (known(run=RUN, watched_s=1.0), Founding(act="wait")),
    "a leader on the other side of a partition": (known(run=RUN), Founding(act="wait")),
    "a starved leader": (known(run=msgspec.structs.replace(RUN, silent_s=2.9)), Founding(act="wait")),
    "nobody leads": (known(run=SILENT), Founding(act="go_on", run_id="x")),
    "nobody leads, in a folder that may be this node's alone": (
        known(run=SILENT, fewest=1, most=4, is_shared=False),
        Founding(act="go_on", run_id="x", needs=3),  # counts where the run had not begun
    ),
    "nobody leads, another command of the same --rdzv-id": (
        known(run=msgspec.structs.replace(SILENT, same_command=False)),
        Founding(act="found", after=3, closes="x", hold_s=4.0),
    ),
    "nobody leads, and --found": (
        known(run=SILENT, forced=True),
        Founding(act="found", after=3, closes="x", hold_s=4.0),
    ),
    "somebody leads, and --found": (known(run=LIVES, forced=True), Founding(act="found", after=3, hold_s=4.0)),
    "--found does not know yet": (known(run=RUN, forced=True, watched_s=1.0), Founding(act="wait")),
    "another --run-id": (known(run=LIVES, named="y"), Founding(act="refuse")),
    "another --run-id, after the end": (known(run=OVER, named="y"), Founding(act="found", after=3)),
    "the same --run-id": (known(run=SILENT, named="x"), Founding(act="go_on", run_id="x")),
    # Slurm has ended what it started before
    "under Slurm": (known(run=SILENT, scheduled=True), Founding(act="found")),
    "under Slurm, where it is led": (known(run=LIVES, scheduled=True), Founding(act="join", where="n1:7")),
}


@pytest.mark.parametrize("case", CASES)
def test_the_table(case: str) -> None:
    seen, expected = CASES[case]
    found = decide(seen)
    assert msgspec.structs.replace(found, say="") == expected
    assert found.say.isprintable()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (
            known(run=RUN),
            "run x of this job goes on, led by n1 at n1:7, which does not answer this node; waiting for it; --found",
        ),
        (
            known(remembers="x"),
            "run x of this job, which has not ended as far as it knows, and runs/.rendezvous-0 has nothing",
        ),
        (
            known(trouble="no answer within 5 s"),
            "cannot learn whether this job runs already: no answer within 5 s; asking",
        ),
        (known(fewest=1, most=4, is_shared=False), "begins with 3 of its 4 nodes; --found begins with 1"),
        (
            known(run=LIVES, named="y"),
            "--run-id y: run x of this job is not over, led by n1 at n1:7; leave --run-id out",
        ),
        (known(run=SILENT), "is not over and has no leader any more: this node goes on with it; --found"),
        (known(run=LIVES, forced=True), "--found: a new run, although run x of this job goes on, led by n1 at n1:7"),
    ],
)
def test_what_is_said(seen: Known, words: str) -> None:
    assert words in decide(seen).say


RUNS = st.builds(
    RunSeen,
    run_id=st.sampled_from(["x", "y"]),
    number=st.integers(0, 3),
    over=st.booleans(),
    gone=st.booleans(),
    leader=st.sampled_from(["", "n1:7"]),
    silent_s=st.sampled_from([0.0, 2.0, 9.0]),
    same_command=st.booleans(),
)
ALL = st.builds(
    Known,
    moves=st.just(True),
    trouble=st.sampled_from(["", "hangs"]),
    is_shared=st.booleans(),
    run=st.one_of(st.none(), RUNS),
    remembers=st.sampled_from(["", "x"]),
    named=st.sampled_from(["", "x"]),
    fewest=st.just(1),
    most=st.integers(1, 4),
    watched_s=st.sampled_from([0.0, 9.0]),
    patience_s=st.just(3.0),
)


@given(ALL)
def test_without_force_nothing_is_founded_beside_a_run_that_is_not_over_unless_that_one_is_ended_first(
    seen: Known,
) -> None:
    found = decide(seen)
    run = seen.run
    if found.act == "found":
        assert not seen.trouble
        assert run is None or run.over or run.gone or found.closes == run.run_id
        if run is None:
            assert not seen.remembers
            assert seen.is_shared or found.needs > seen.most / 2 or seen.fewest > seen.most / 2
    if found.act == "go_on":
        assert run is not None and run.silent_s >= seen.patience_s
