"""Programs of frameworks that keep every step by a callback of ours: killed at any step, they end with the same weights."""

from __future__ import annotations

import re
from pathlib import Path

import framework_parts
import pytest
from jobs import run

HERE = Path(__file__).parent
#: By the number of ranks: at the end of an epoch, and in the second one; within the first one.
KILLED_AFTER = {1: (10, 13), 2: (3,)}
pytestmark = pytest.mark.timeout(900)  # the first of them installs the frameworks


def weights_of(
    program: str, killed_after: tuple[int, ...], ranks: int, at: Path, warm: dict[str, str]
) -> tuple[str, str]:
    """Return what it ends with, and all that was said."""
    at.mkdir()
    code, job = run(
        at,
        "--nproc-per-node",
        str(ranks),
        str(HERE / program),
        *map(str, killed_after),
        env={**framework_parts.environment(), **warm},
        python=framework_parts.python(),
    )
    assert code == 0, job.err
    assert ("started from the warm process" in job.err) == bool(warm), job.err
    found = re.search(r"step \d+ weights \w+", job.out)
    assert found is not None, job.out
    return found[0], job.err


@pytest.mark.parametrize(("program", "ranks"), [("trainer_job.py", 1), ("trainer_job.py", 2), ("lightning_job.py", 1)])
def test_it_goes_on_from_the_last_step_with_the_batches_and_numbers_that_come_next(
    program: str, ranks: int, tmp_path: Path, warm: dict[str, str]
) -> None:
    undisturbed, _ = weights_of(program, (), ranks, tmp_path / "undisturbed", warm)
    ended, said = weights_of(program, KILLED_AFTER[ranks], ranks, tmp_path / "killed", warm)
    assert ended == undisturbed
    for attempt, step in enumerate(KILLED_AFTER[ranks], 1):
        assert re.search(rf"attempt {attempt} starts at step ({step}|{step - 1}) from memory", said), said
