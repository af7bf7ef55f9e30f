"""The rules of .gitignore and .robustignore, compared with git's own where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from robust_run.launcher.records.code.ignore import is_ignored, parse

CASES = [
    ("*.log", "a.log", True),
    ("*.log", "d/a.log", True),
    ("/*.log", "d/a.log", False),
    ("build/", "d/build/x.py", True),
    ("build/", "build.py", False),
    ("d/*.py", "d/x.py", True),
    ("d/*.py", "e/d/x.py", False),
    ("**/gen/*.py", "a/b/gen/x.py", True),
    ("**/gen/*.py", "gen/x.py", True),
    ("a/**/z.py", "a/z.py", True),
    ("a/**/z.py", "a/b/c/z.py", True),
    ("d/**", "d/e/f.py", True),
    ("*.py\n!keep.py", "keep.py", False),
    ("*.py\n!keep.py", "drop.py", True),
    ("# a comment\n\nx.py", "x.py", True),
    ("\\#odd.py", "#odd.py", True),
    ("[ab].py", "a.py", True),
    ("[!ab].py", "a.py", False),
    ("[a-c]?.py", "b1.py", True),
    ("b[!a]", "b/c.py", False),
    ("x.py   ", "x.py", True),
    ("data", "data/x.py", True),
]


def ignored(rules: str, path: str) -> bool:
    """Whether a file or a folder on its way is ignored."""
    parts = path.split("/")
    parsed = parse(rules)
    return any(
        is_ignored(parsed, "/".join(parts[: depth + 1]), is_folder=depth + 1 < len(parts))
        for depth in range(len(parts))
    )


@pytest.mark.parametrize(("rules", "path", "expected"), CASES)
def test_patterns_mean_what_they_mean_to_git(rules: str, path: str, expected: bool) -> None:
    assert ignored(rules, path) == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git, which is not installed")
def test_git_agrees(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for rules, path, _ in CASES:
        (tmp_path / ".gitignore").write_text(rules + "\n")
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
        told = subprocess.run(["git", "-C", tmp_path, "check-ignore", "-q", path], check=False).returncode == 0
        assert ignored(rules, path) == told, (rules, path)


def test_what_tools_make_is_ignored_unless_taken_back() -> None:
    assert ignored("", ".git/config")
    assert ignored("", "pkg/__pycache__/x.py")
    assert not ignored("!wandb/", "wandb/x.py")
    assert ignored("", "wandb/x.py")


def test_rules_of_a_folder_hold_below_it_alone() -> None:
    rules = parse("*.py", "d/")
    assert is_ignored(rules, "d/x.py", is_folder=False)
    assert not is_ignored(rules, "x.py", is_folder=False)
