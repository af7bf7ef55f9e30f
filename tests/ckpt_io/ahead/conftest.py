"""A checkpoint on a web server, and memory that it is fetched into, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ahead_ground import CONTENT, Ground
from counting_server import counting_server
from made_checkpoints import make_checkpoint


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    make_checkpoint([tmp_path / "step-7"], CONTENT, step=7)
    with counting_server(tmp_path) as server:
        ground = Ground(f"{server.url}/step-7", server, tmp_path / "step-7")
        yield ground
        ground.targets.close()
        os.close(ground.memory)
