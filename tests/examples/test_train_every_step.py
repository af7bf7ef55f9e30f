"""The example that keeps every step: an attempt that dies costs nothing but its last step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_programs import Python

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_every_step.py"


def test_one_that_died_ends_with_the_weights_of_one_that_did_not(
    tmp_path: Path, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(folder: Path, *words: str, code: int = 0) -> str:
        monkeypatch.setenv("ROBUST_CKPT_DIR", str(folder))
        done = python((str(SCRIPT), "--steps", "12", *words))
        assert done.code == code, done.out + done.err
        return done.out

    straight = train(tmp_path / "straight")
    assert train(tmp_path / "died", "--die-after", "7", code=1).splitlines() == ["begins after step 0"]
    resumed = train(tmp_path / "died")
    assert "begins after step 7" in resumed
    assert re.findall(r"weights (\w{64})", resumed) == re.findall(r"weights (\w{64})", straight) != []
