"""Each process of xdist rewrites a share of the test files, before all of them read all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forks
from rewriting import share


def test_shares_are_all_files_each_once_and_only_those_that_are_asked_for(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("test_a.py", "below/test_b.py", "test_c.py")]
    (tmp_path / "below").mkdir()
    for file in (*files, tmp_path / "helper.py"):
        file.touch()
    whole = [str(tmp_path)]
    assert sorted(share(whole, 0, 2) + share(whole, 1, 2)) == sorted(files)
    assert share([f"{files[0]}::test_x"], 0, 2) == files[:1]
    assert share([f"{files[0]}::test_x"], 1, 2) == []


def test_each_process_keeps_what_it_rewrote_for_the_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import rewriting\npytest_configure = rewriting.rewrite_share\n")
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text("def test_one():\n    assert 1\n")
    # `--ignore`: the processes never come to read these, so that rewriting them was our doing.
    ignored = [f"--ignore={tmp_path}/test_{name}.py" for name in "bcd"]
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--rootdir",
        tmp_path,
        "-c",
        "/dev/null",
        *ignored,
        tmp_path,
    ]
    env = {name: value for name, value in forks.environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    kept = sorted(path.name.partition(".")[0] for path in tmp_path.glob("__pycache__/test_*-pytest-*.pyc"))
    assert kept == ["test_a", "test_b", "test_c", "test_d"]
