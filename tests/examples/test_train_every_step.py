"""The example that keeps every step: an attempt that dies costs nothing but its last step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_every_step.py"
LIMIT_S = 300


def train(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "12", *words],
        env=os.environ | {"ROBUST_CKPT_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_one_that_died_ends_with_the_weights_of_one_that_did_not(tmp_path: Path) -> None:
    straight = train(tmp_path / "straight")
    assert train(tmp_path / "died", "--die-after", "7", code=1).splitlines() == ["begins after step 0"]
    resumed = train(tmp_path / "died")
    assert "begins after step 7" in resumed
    assert re.findall(r"weights (\w{64})", resumed) == re.findall(r"weights (\w{64})", straight) != []
