"""A real keeper: what is saved is held, outlives its worker, and is handed out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepers import KeeperGround, contents, fill, load, memory_of, save, worker

from robust_run.ckpt_io.errors import MemoryUnavailable, SegmentRefused
from robust_run.ckpt_io.memory import place, segment
from robust_run.ckpt_io.memory.client import Skipped
from robust_run.ckpt_io.memory.protocol import SOCKET

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


def test_a_worker_that_dies_before_it_has_copied_leaves_what_was_there(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    first = worker(keeper.folder)
    assert save(first, 1)
    layout = segment.layout([("w", "uint8", (10_000,), 10_000)], b"values")
    buffer = first.begin(2, layout.used_bytes)
    assert not isinstance(buffer, Skipped)
    fill(buffer, layout, 0, 0, 1, 10_000)  # all of it is there, and it has not said so
    first.close()
    keeper.look_until(lambda held: held == [(0, 1, (0,))])


def test_a_generation_is_what_both_ranks_have(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0, 1))
    both = [worker(keeper.folder, rank, 2) for rank in (0, 1)]
    for rank in (0, 1):
        assert save(both[rank], 1, rank, world=2)
    assert save(both[0], 2, 0, world=2)
    assert keeper.look() == [(0, 2, (0,)), (0, 1, (0, 1))]
    assert save(both[0], 3, 0, world=2)
    assert not save(both[0], 4, 0, world=2), "the step that both have would be lost"
    assert (0, 1, (0, 1)) in keeper.look()
    assert save(both[1], 3, 1, world=2) and save(both[0], 5, 0, world=2)
    for each in both:
        each.close()


def test_bytes_that_change_after_the_copy_are_found(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    layout = segment.layout([("w", "uint8", (10_000,), 10_000)], b"values")
    buffer = client.begin(1, layout.used_bytes)
    assert not isinstance(buffer, Skipped)
    fill(buffer, layout, 0, 0, 1, 10_000)
    client.copied(buffer, layout.used_bytes)
    keeper.look_until(lambda held: held == [(0, 1, (0,))])
    buffer.view[layout.offsets[0]] ^= 1  # a stray write of a program that is about to crash
    with pytest.raises(SegmentRefused, match="digest"):
        load(client, 0, 1)
    client.close()


def test_a_keeper_that_is_killed_is_said_and_leaves_nothing(start: Starts, tmp_path: Path) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    assert save(client, 1)
    keeper.kill()
    with pytest.raises(MemoryUnavailable):
        for step in (2, 3):  # the first of them may find the socket not closed yet
            save(client, step)
    assert [path.name for path in (tmp_path / "keeper").iterdir()] == [SOCKET]
    again = start()
    again.begin_attempt(1, (0,))
    assert again.look() == []
    again.socket.close()
    again.process.wait(60)
    assert list((tmp_path / "keeper").iterdir()) == []


def test_too_little_memory_is_refused_with_the_numbers(start: Starts) -> None:
    keeper = start(limit_bytes=2 << 20)
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    with pytest.raises(MemoryUnavailable, match=r"too little memory .*--ckpt-memory allows 2.0 MiB"):
        save(client, 1, size_bytes=4 << 20)
    keeper.look()
    assert len(keeper.notes) == 1 and "too little memory" in keeper.notes[0]
    client.close()


def test_strangers_and_garbage_do_not_keep_ranks_from_being_served(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    strangers = []
    for content in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, b"\0\0\0\4\xc1\xc1\xc1\xc1", b"\0\0", b"") * 20:
        strangers.append(place.connect(keeper.folder, 60.0))
        strangers[-1].sendall(content)
    client = worker(keeper.folder)
    assert save(client, 1)
    assert keeper.look() == [(0, 1, (0,))]
    for each in (client, *strangers):
        each.close()


def test_workers_of_another_attempt_or_rank_are_refused(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(1, (0,))
    for wrong in ({"attempt": 0}, {"rank": 1, "attempt": 1}, {"world_size": 2, "attempt": 1}):
        with pytest.raises(MemoryUnavailable, match=r"serves attempt|not one of this node's"):
            worker(keeper.folder, **wrong)
    old = worker(keeper.folder, attempt=1)
    keeper.begin_attempt(2, (0,), resumed_step=0)
    with pytest.raises(MemoryUnavailable):
        for step in (1, 2):
            save(old, step, attempt=1)


def test_a_path_longer_than_a_sockets_address(start: Starts, tmp_path: Path) -> None:
    keeper = start(tmp_path / ("x" * 120) / "keeper")
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    assert save(client, 1)
    client.close()


def test_a_folder_that_others_may_look_into_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    keeper = KeeperGround(str(folder))
    with pytest.raises(EOFError, match="only we may use it"):
        keeper.ready()
    keeper.end()
