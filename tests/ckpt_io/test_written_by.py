"""A checkpoint says which version of the job's code wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.ckpt_io.saving import begin_save, commit


@pytest.mark.parametrize(
    ("env", "facts"),
    [
        ({"ROBUST_CODE_VERSION": "3-abcdef0123"}, {"code version": "3-abcdef0123", "who": "me"}),
        ({}, {"who": "me"}),
        ({"ROBUST_CODE_VERSION": "\x1b[2J"}, {"who": "me"}),
    ],
)
def test_the_version_is_among_the_facts(tmp_path: Path, env: dict[str, str], facts: dict[str, str]) -> None:
    plan = begin_save(str(tmp_path / "step-1"))
    assert commit(plan, [], facts={"who": "me"}, env=env).facts == facts
