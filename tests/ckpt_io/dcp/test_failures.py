"""Errors get from rank to rank by pickle, whatever they are made of."""

from __future__ import annotations

import pickle
import traceback

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from robust_run.ckpt_io.dcp import PeerFailed
from robust_run.ckpt_io.dcp.failures import plain_errors, travels
from robust_run.ckpt_io.errors import CheckpointError, Damaged, NotACheckpoint
from robust_run.errors import UserError
from robust_run.store.errors import NoSpace

OURS = [
    UserError("typed wrong"),
    NotACheckpoint("/c", "nothing there"),
    Damaged(file="f", unit=3, target="/t", part="p", reason="bits"),
    NoSpace("/t", "p", "it is full"),
]


@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
def test_ours_arrive_with_text_and_attributes(error: Exception) -> None:
    @travels
    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        fails()
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert type(arrived) is type(error) and str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_a_foreign_error_that_cannot_travel_arrives_as_text() -> None:
    class LocalError(Exception):
        pass

    @travels
    def fails() -> None:
        raise LocalError("whoever wrote this")

    with pytest.raises(CheckpointError, match="LocalError: whoever wrote this"):
        fails()


def collected(*errors: BaseException) -> CheckpointException:
    return CheckpointException(
        "read", {rank: (error, traceback.StackSummary.from_list([])) for rank, error in enumerate(errors)}
    )


def test_the_first_of_ours_is_raised_and_a_cause_before_those_who_waited() -> None:
    with pytest.raises(UserError, match="typed wrong"), plain_errors():
        raise collected(PeerFailed("rank 1"), KeyError("x"), OURS[0], OURS[1])


def test_what_is_not_ours_can_be_caught_as_well() -> None:
    with pytest.raises(KeyError, match="x"), plain_errors():
        raise collected(KeyError("x"), ValueError("y"))


def test_an_interrupt_stays_in_torchs_collection() -> None:
    with pytest.raises(CheckpointException), plain_errors():
        raise collected(KeyboardInterrupt())
