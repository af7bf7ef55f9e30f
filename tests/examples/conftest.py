"""Runs programs of the examples where torch is imported already; with TEST_WARM=off each of them imports it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import forks
import pytest
import warm_ground
from example_programs import Python, forks_environment


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    """Runs a program: forked, as each start takes 3 s of CPU for its imports; see warm_ground.py."""
    if not warm_ground.WANTED:
        yield lambda argv: forks.run_plain(argv, Path.cwd(), forks_environment())
        return
    # What torch's own optimizers import is imported before, too.
    with forks.warm_process(tmp_path_factory.mktemp("elsewhere"), modules=("torch._dynamo",)) as forker:
        yield lambda argv: forker.run(argv, Path.cwd(), forks_environment())
