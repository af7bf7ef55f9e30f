"""Fifty savers are killed at moments that chance chose: each file is the one before or the new one, and never anything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jobs import wait_for

from robust_run.ckpt_io.catalog import list_checkpoints
from robust_run.ckpt_io.reading import open_checkpoint

from .conftest import Mount

KILLS = 50


@pytest.mark.timeout(900)
def test_what_fifty_killed_savers_leave_is_old_or_new(mounted: Mount, tmp_path: Path) -> None:
    point = Path(mounted(tmp_path / "a", also=(str(tmp_path / "b"),), writable=True, unit_bytes=1 << 20).point)
    torch.save({"weight": torch.full((600_000,), -1.0), "value": -1}, point / "model.pt")
    stands_for: dict[str, int | None] = {"model.pt": -1}
    in_the_middle = []
    argv = [sys.executable, Path(__file__).with_name("killed_savers.py"), point, "20261122", str(KILLS)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killer:
        assert killer.stdin is not None and killer.stdout is not None
        for line in killer.stdout:
            name, value, was_stopped = json.loads(line)
            before = stands_for.get(name)
            found = value_of(tmp_path / "a", point, name)
            assert found in ((before,) if was_stopped else (before, value)), line
            stands_for[name] = found
            in_the_middle.append(was_stopped or found != value)
            killer.stdin.write("go on\n")
            killer.stdin.flush()
    assert killer.returncode == 0
    assert len(in_the_middle) == KILLS and sum(in_the_middle) >= KILLS // 2
    there = sorted(name for name, value in stands_for.items() if value is not None)
    wait_for(lambda: sorted(os.listdir(point)) == there, "nothing but what was saved")
    assert [(each.name, each.state) for each in list_checkpoints(str(tmp_path / "a"))] == [
        (name, "valid") for name in there
    ]


def value_of(root: Path, point: Path, name: str) -> int | None:
    """Return what was saved under a name, by the mount and by the checkpoint behind it; None if there is nothing."""
    if not (root / name / "MANIFEST").exists():
        return None
    with open_checkpoint(str(root / name)) as checkpoint:
        assert checkpoint.check() == []
    state = torch.load(point / name)
    assert state["weight"].unique().tolist() == [state["value"]]
    return int(state["value"])
