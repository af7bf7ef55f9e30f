"""What tests of saves and loads share: the process that forks ranks, and a real keeper of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from keepers import KeeperGround
from made_ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    found = Ranks(tmp_path_factory.mktemp("ranks"))
    with found.process:  # closes its stdin, upon which it ends
        yield found


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperGround]:
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o700)
    ground = KeeperGround(str(folder)).ready()
    yield ground
    ground.end()
