"""States that are refused before anything is written, and what is next to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from saved_states import a_new_process

from robust_run import checkpoint


@pytest.fixture(autouse=True)
def new_process() -> None:
    a_new_process()


class Pair(NamedTuple):
    """A tuple that would come back as another."""

    one: int
    other: int


def test_a_name_that_storage_has_no_room_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for state in ({"v": {"x" * 5000: torch.ones(1)}}, {"v": {"x" * 2500: {"x" * 2500: torch.ones(1)}}}):
        with pytest.raises(
            checkpoint.StateRefused, match=r"v\.xxx.*\.\.\.: has a name of 500\d characters, at most 4000"
        ) as caught:
            checkpoint.save(state, step=1, folder=str(tmp_path / "ckpt"), every=1)
        assert len(str(caught.value)) < 400
        assert not (tmp_path / "ckpt").exists()
    checkpoint.save({"v": {"x" * 3998: torch.ones(1), "y" * 5000: 3}}, step=1, folder=str(tmp_path / "ckpt"), every=1)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Pair(1, 2), r"\.Pair: save it as tuple\(\.\.\.\)"),
        (os.stat_result(range(10)), r"is a os\.stat_result: save it as tuple\(\.\.\.\)"),
        (numpy.float32(0.5), r"is a numpy\.float32: save it as int\(\.\.\.\), float\("),
        (numpy.int64(5), r"is a numpy\.int64: save it as int\("),
        (numpy.str_("a"), r"is a numpy\.str_: save it as int\("),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(tmp_path: Path, value: Any, said: str) -> None:
    with pytest.raises(checkpoint.StateRefused, match=rf"cannot be saved: a\.0: .*{said}"):
        checkpoint.save({"a": [value]}, step=1, folder=str(tmp_path / "ckpt"))
    assert not (tmp_path / "ckpt").exists()


def test_sizes_come_back_as_equal_tuples(tmp_path: Path) -> None:
    checkpoint.save({"shape": torch.ones(3, 4).shape}, step=1, folder=str(tmp_path))
    a_new_process()
    state: dict[str, Any] = {"shape": ()}
    checkpoint.load(state, folder=str(tmp_path))
    assert (type(state["shape"]), state["shape"]) == (tuple, torch.Size([3, 4]))


def test_learning_rates_that_numpy_computed_are_kept_as_floats(tmp_path: Path) -> None:
    """torch puts them into the state of optimizer and scheduler: refused, such a training could not be saved."""

    def scheduler() -> torch.optim.lr_scheduler.LambdaLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: numpy.cos((step + 1) / 10))

    saved, loaded = scheduler(), scheduler()
    assert type(saved.optimizer.param_groups[0]["lr"]) is numpy.float64
    checkpoint.save({"optimizer": saved.optimizer, "scheduler": saved}, step=1, folder=str(tmp_path))
    a_new_process()
    loaded.optimizer.param_groups[0]["lr"], loaded._last_lr = 0.0, [0.0]
    checkpoint.load({"optimizer": loaded.optimizer, "scheduler": loaded}, folder=str(tmp_path))
    for rate in (loaded.optimizer.param_groups[0]["lr"], loaded.state_dict()["_last_lr"][0]):
        assert type(rate) is float
        assert rate == saved.state_dict()["_last_lr"][0]
