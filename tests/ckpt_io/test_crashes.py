"""SIGKILL at any point of a save or a removal: what was there before loads; what is new is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from saved_checkpoints import held_by

from robust_run.ckpt_io.catalog import latest, list_checkpoints, prune
from robust_run.ckpt_io.errors import NotACheckpoint
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.storage_clock import storage_s
from robust_run.store.opening import open_store

sys.path.insert(0, str(Path(__file__).parent))
from dying_saver import HOWS, NEW, OLD, OTHER, roots

TESTS = Path(__file__).parents[1]


def die_everywhere(root: Path, how: str) -> int:
    """Run the saver; return how many saves it killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(Path(__file__).with_name("dying_saver.py")), str(root), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stdout + done.stderr
    return int(done.stdout)


def loaded(url: str, also: list[str]) -> dict[str, bytes]:
    """As `held_by`, whether or not all copies of the manifest are there."""
    with open_checkpoint(url, also=also) as opened:
        files = opened.manifest.files
        return {file.name: opened.read_bytes(index, 0, file.size_bytes) for index, file in enumerate(files)}


def held_or_none(url: str, also: list[str]) -> dict[str, bytes] | None:
    try:
        return held_by(url, also)
    except NotACheckpoint:
        return None


@pytest.mark.parametrize("how", [how for how in HOWS if how != "prune"])
def test_a_save_that_dies_loses_nothing_and_shows_nothing_half_done(tmp_path: Path, how: str) -> None:
    exists, targets, _ = HOWS[how]
    kills = die_everywhere(tmp_path, how)
    assert kills > 12
    outcomes = []
    for k in range(kills + 1):
        primary, *also = roots(f"{tmp_path}/{k}", targets)
        held = held_or_none(f"{primary}/ck", [])
        assert held in ((OLD, NEW) if exists else (None, NEW)), f"killed at operation {k}"
        assert held_or_none(f"{primary}/ck", also) in (held, NEW), f"killed at operation {k}, copies looked at"
        assert held_by(f"{primary}/other") == OTHER
        newest = latest(primary)
        assert newest is not None and (newest.name, newest.step) == (
            ("other", 1) if held is None else ("ck", 3 if held == NEW else 2)
        )
        outcomes.append(held == NEW)
        if k % 7 == 0 or k == kills:
            assert_pruning_keeps(primary, also, held)
        shutil.rmtree(tmp_path / str(k))
    assert outcomes == sorted(outcomes) and outcomes[-1] and not outcomes[0]  # from one operation on, it is there


def assert_pruning_keeps(primary: str, also: list[str], held: dict[str, bytes] | None) -> None:
    """What a dead save left is removed after its time, and nothing else."""
    prune(primary, also=also, keep=9, grace_s=0, now_s=lambda: 4e9)
    assert held_or_none(f"{primary}/ck", []) == held and held_by(f"{primary}/other") == OTHER
    whole = [found for found in list_checkpoints(primary, also) if found.state == "valid"]
    assert all(not found.leftovers for found in whole)
    for root in (primary, *also):
        for found in whole:
            parts = [name for name in os.listdir(f"{root}/{found.name}") if name.startswith("parts-")]
            assert parts in ([], [f"parts-{found.uuid}"])


def test_a_removal_that_dies_leaves_the_newest_and_nothing_half_there(tmp_path: Path) -> None:
    kills = die_everywhere(tmp_path, "prune")
    assert kills > 10
    for k in range(kills + 1):
        primary, *also = roots(f"{tmp_path}/{k}", 2)
        assert held_by(f"{primary}/ck") == OLD
        for places in ([], also):
            other = list_checkpoints(primary, places)
            if any(found.name == "other" and found.state == "valid" for found in other):
                assert loaded(f"{primary}/other", also) == OTHER
        prune(primary, also=also, keep=1, grace_s=0, now_s=lambda: 4e9)
        assert [found.name for found in list_checkpoints(primary, also)] == ["ck"]
        storage_s(primary, open_store)  # as the next one asks: it removes what was left where one died that asked
        for root in (primary, *also):  # an empty folder may stay: nobody can tell whose it is
            assert [name for name in os.listdir(root) if os.listdir(f"{root}/{name}")] == ["ck"]
        assert held_by(f"{primary}/ck") == OLD
