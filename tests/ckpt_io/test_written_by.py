"""A checkpoint says which version of the job's code wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.ckpt_io.newest import newest_path, written_by
from robust_run.ckpt_io.saving import begin_save, commit


@pytest.mark.parametrize(
    ("env", "facts"),
    [
        ({"ROBUST_JOB": "run", "ROBUST_CODE_VERSION": "3-ab"}, {"code version": "run 3-ab", "who": "me"}),
        ({}, {"who": "me"}),
        ({"ROBUST_CODE_VERSION": "\x1b[2J"}, {"who": "me"}),
    ],
)
def test_the_version_is_among_the_facts(tmp_path: Path, env: dict[str, str], facts: dict[str, str]) -> None:
    plan = begin_save(str(tmp_path / "step-1"))
    assert commit(plan, [], facts={"who": "me"}, env=env).facts == facts


def test_what_a_rolled_back_version_wrote_is_the_last_resort(tmp_path: Path) -> None:
    for step, version in ((1, "1-aa"), (2, "1-aa"), (3, "2-bb")):
        env = {"ROBUST_JOB": "run", "ROBUST_CODE_VERSION": version}
        commit(begin_save(str(tmp_path / f"step-{step}")), [], step=step, env=env)
    assert newest_path(str(tmp_path)) == str(tmp_path / "step-3")
    assert newest_path(str(tmp_path), [written_by("run", "2-bb")]) == str(tmp_path / "step-2")
    assert newest_path(str(tmp_path), [written_by("another job", "2-bb")]) == str(tmp_path / "step-3")
    assert newest_path(str(tmp_path), [written_by("run", each) for each in ("1-aa", "2-bb")]) == str(
        tmp_path / "step-3"
    )
