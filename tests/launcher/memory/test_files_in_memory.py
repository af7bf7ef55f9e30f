"""A run's folder in memory, in which files of checkpoints are mounted that cannot be unmounted: nothing looks into it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robust_run.launcher.records.memory_folders import FILES, remove_tree

_PROGRAM = """
import os, sys
from robust_run.launcher.records.memory_folders import FILES, remove_tree
from robust_run.mounts import syscalls
folder = sys.argv[1]
syscalls.unshare(syscalls.NEW_MOUNTS)
syscalls.make_private()
syscalls.mount("tmpfs", f"{folder}/{FILES}")
open(f"{folder}/{FILES}/weights", "w").close()
remove_tree(folder)
print(sorted(os.listdir(folder)), os.listdir(f"{folder}/{FILES}"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root may do anything")
def test_what_is_still_mounted_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / FILES).mkdir()
    (tmp_path / "steps").touch()
    env = {**os.environ, "PATH": str(tmp_path / "steps")}  # no fusermount3 is found
    argv = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"{sorted([FILES, 'steps'])} ['weights']", done.stderr


def test_without_a_mount_all_of_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / FILES).mkdir(parents=True)
    remove_tree(str(folder))
    assert not folder.exists()
