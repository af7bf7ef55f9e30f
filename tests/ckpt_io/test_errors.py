"""Errors of one rank reach the others as they are: torch.distributed pickles them."""

from __future__ import annotations

import pickle

import pytest

from robust_run.ckpt_io.errors import (
    CheckpointError,
    Damaged,
    ManifestRefused,
    NotACheckpoint,
    Replaced,
    TargetLost,
)
from robust_run.errors import PlatformError


@pytest.mark.parametrize(
    "error",
    [
        CheckpointError("something"),
        NotACheckpoint("/a/b", "nothing there"),
        ManifestRefused("it is wrong", "/a/b"),
        Damaged(file="f", unit=3, target="/t", part="p", reason="digest"),
        TargetLost("/t", "full"),
        Replaced("/a/b"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_rank(error: CheckpointError) -> None:
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error) and str(other) == str(error) and vars(other) == vars(error)
    assert isinstance(other, PlatformError) and "\n" not in str(error)
