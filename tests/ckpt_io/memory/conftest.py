"""Keepers that a test starts, and that end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepers import KEY, KeeperGround, worker

from robust_run.ckpt_io.memory.agent_protocol import TlsFiles
from robust_run.ckpt_io.memory.client import MemoryClient

StartsNodes = Callable[..., KeeperGround]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StartsNodes]:
    """Starts the keeper of a node that copies to and from others."""
    started: list[KeeperGround] = []

    def begin(limit_bytes: int | None = 1 << 30, key: bytes = KEY, tls: TlsFiles | None = None) -> KeeperGround:
        folder = tmp_path / f"keeper-{len(started)}"
        folder.mkdir(mode=0o700)
        started.append(KeeperGround(str(folder), limit_bytes, key, tls))
        return started[-1].ready()

    yield begin
    for each in started:
        each.end()


@pytest.fixture
def rank_of() -> Iterator[Callable[..., MemoryClient]]:
    """Connects ranks to a keeper."""
    joined: list[MemoryClient] = []

    def join(keeper: KeeperGround, rank: int = 0, world: int = 1, attempt: int = 0) -> MemoryClient:
        joined.append(worker(keeper.folder, rank, world, attempt))
        return joined[-1]

    yield join
    for each in joined:
        each.close()
