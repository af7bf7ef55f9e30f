"""A real keeper: what is saved is held, outlives its worker, and is handed out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepers import KeeperGround, contents, load, memory_of, save, worker

Starts = Callable[..., KeeperGround]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starts]:
    started: list[KeeperGround] = []

    def begin(folder: Path = tmp_path / "keeper", limit_bytes: int | None = None) -> KeeperGround:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        started.append(KeeperGround(str(folder), limit_bytes))
        return started[-1].ready()

    yield begin
    for each in started:
        each.end()


def test_a_save_is_held_and_handed_out_after_a_relaunch(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    first = worker(keeper.folder)
    assert [save(first, step) for step in (1, 2, 3, 4)] == [True] * 4
    first.close()
    held = keeper.look()
    assert held == [(0, 4, (0,)), (0, 3, (0,)), (0, 2, (0,))]
    keeper.begin_attempt(1, (0,), resumed_step=3)
    assert keeper.look() == [(0, 3, (0,)), (0, 2, (0,))]
    again = worker(keeper.folder, attempt=1)
    assert load(again, 0, 3) == contents(3, 0, 10_000)
    assert load(again, 0, 4) is None
    before = memory_of(keeper.process.pid)
    assert save(again, 4, attempt=1) and len(before) == 3
    assert sorted(memory_of(keeper.process.pid)) == sorted(before)
    assert keeper.look()[0] == (1, 4, (0,))
    again.close()
