"""What tests of frameworks share in one run, whichever process of xdist runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import framework_warmth
import pytest


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "frameworks"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def warm(shared: Path) -> Iterator[dict[str, str]]:
    """The variables of jobs that start from a warm process with the frameworks imported."""
    with framework_warmth.warm_jobs(shared) as variables:
        yield variables
