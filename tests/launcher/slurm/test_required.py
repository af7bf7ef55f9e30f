"""A job that requires a node by -w and is to be kept from it: Slurm takes both, and never starts it."""

from __future__ import annotations

import pytest

from robust_run.slurm.required import Contradiction, is_stuck, others_of, split


def test_what_is_required_is_not_excluded() -> None:
    assert split(("rr2", "rr5"), "rr[1-3]") == (("rr5",), ("rr2",))
    assert split(("rr2",), "") == (("rr2",), ())
    assert split(("rr2",), "rr[1-") == ((), ("rr2",)), "a list that cannot be read may name it"


@pytest.mark.parametrize(
    ("evicted", "required", "nodes", "fewest", "stuck"),
    [
        (("rr2",), ("rr2",), 3, 3, True),
        (("rr2",), ("rr2",), 3, 2, False),  # elastic, or with a standby: it goes on as it did
        (("rr2",), (), 3, 3, False),  # Slurm gives it another
        ((), ("rr2",), 3, 3, False),  # dead: Slurm waits until it is mended
        (("rr1", "rr2"), ("rr1", "rr2"), 4, 3, True),
    ],
)
def test_whether_another_start_could_only_fail(
    evicted: tuple[str, ...], required: tuple[str, ...], nodes: int, fewest: int, stuck: bool
) -> None:
    assert is_stuck(evicted, required, nodes=nodes, fewest=fewest) is stuck


def test_it_is_said_with_the_command_that_mends_it() -> None:
    told = Contradiction(
        job="7", nodes=("rr2",), others=others_of("rr[1-3]", ("rr2",)), excluded="rr9,rr2", is_stuck=False
    )
    assert told.sentence == (
        "job 7 requires rr2 (-w), which it is to be kept from: not excluded, because with both it would never start; "
        "scontrol update JobId=7 ReqNodeList=rr1,rr3 ExcNodeList=rr9,rr2 has it started on others"
    )
    stuck = Contradiction(job="7", nodes=("rr2",), others=(), excluded="rr2", is_stuck=True)
    assert stuck.sentence == (
        "job 7 is held: it requires rr2 (-w), which it must do without, and the other nodes are too few; "
        "scontrol update JobId=7 ReqNodeList= ExcNodeList=rr2 && scontrol release 7 starts it on others"
    )
