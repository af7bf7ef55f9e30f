"""One warm process for all tests of forked workers in a process of pytest: importing torch is what takes long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forks import Forker, warm_process


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    with warm_process(tmp_path_factory.mktemp("elsewhere")) as forker:
        yield forker
