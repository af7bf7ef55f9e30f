"""What a checkpoint_id may be, and what its name says."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.ckpt_io.address import step_of
from robust_run.ckpt_io.dcp import RobustReader, RobustWriter


@pytest.mark.parametrize("good", ["/ssd0/run/step-10", Path("run/step-10"), "rrck:///a/b?also=/c", "hdfs://nn/run/s"])
def test_paths_and_urls_are_valid(good: str | Path) -> None:
    assert RobustWriter.validate_checkpoint_id(good)
    assert RobustReader.validate_checkpoint_id(good)


@pytest.mark.parametrize("bad", ["", "/", "hdfs://nn", "rrck:///a/b?nonsense=1", 7, None, b"/bytes"])
def test_what_names_no_checkpoint_is_not(bad: object) -> None:
    assert not RobustWriter.validate_checkpoint_id(bad)  # type: ignore[arg-type]
    assert not RobustReader.validate_checkpoint_id(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("run/step-4000", 4000),
        ("run/step_00000020", 20),
        ("run/global_step7", 7),
        ("rrck:///a/iter-5?also=/c", 5),
        ("run/footstep-4", None),
        ("run/final", None),
        ("run/2026-11-21", None),
    ],
)
def test_the_step_is_what_the_name_ends_with(name: str, step: int | None) -> None:
    assert step_of(name) == step
