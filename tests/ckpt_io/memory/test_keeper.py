"""A real keeper: what is saved is held, outlives its worker, and is handed out again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from keepers import LIMIT_S, KeeperGround, contents, load, memory_of, save, worker

from robust_run.ckpt_io.errors import MemoryUnavailable, SegmentRefused
from robust_run.ckpt_io.memory import place, segment
from robust_run.ckpt_io.memory.agent_protocol import KeeperSetup
from robust_run.ckpt_io.memory.client import Buffer
from robust_run.ckpt_io.memory.frames import frame
from robust_run.ckpt_io.memory.process import command
from robust_run.ckpt_io.memory.protocol import Attach, Begin

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
    for step in (1, 2, 3, 4):
        assert save(first, step) and keeper.look(), "what is hashed is not written to: look waits for that"
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


def test_a_worker_killed_while_it_copies_leaves_the_older_generation(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    code = (
        "import os, signal, sys; sys.path[:0] = sys.argv[2:]; from keepers import save, worker\n"
        "client = worker(sys.argv[1]); assert save(client, 1)\n"
        "buffer = client.begin(2, 20_000); buffer.view[:5000] = b'x' * 5000\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    here = [str(Path(__file__).parents[2])]
    done = subprocess.run([sys.executable, "-c", code, keeper.folder, *here], timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    assert keeper.look() == [(0, 1, (0,))]
    keeper.begin_attempt(1, (0,), resumed_step=1)
    with_one = worker(keeper.folder, attempt=1)
    assert load(with_one, 0, 1) == contents(1, 0, 10_000)
    assert [save(with_one, step, attempt=1) for step in (2, 3)] == [True] * 2
    with_one.close()


def test_a_killed_keeper_leaves_nothing_and_the_next_takes_its_place(start: Starts, tmp_path: Path) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    assert save(client, 1)
    keeper.kill()
    with pytest.raises(MemoryUnavailable):
        client.begin(2, 10_000)
    with pytest.raises(MemoryUnavailable, match="was closed"):
        client.begin(3, 10_000)
    assert os.listdir(keeper.folder) == ["ckpt.sock"]
    assert not memory_of(os.getpid())
    with pytest.raises(MemoryUnavailable, match="cannot be reached"):
        worker(keeper.folder)
    following = start(Path(keeper.folder))
    following.begin_attempt(1, (0,))
    again = worker(following.folder, attempt=1)
    assert save(again, 1, attempt=1) and following.look() == [(1, 1, (0,))]
    again.close()


def test_a_keeper_ends_with_its_agent(start: Starts) -> None:
    keeper = start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        keeper.process.send_signal(number)
    keeper.begin_attempt(0, (0,))
    keeper.socket.close()
    assert keeper.process.wait(LIMIT_S) == 0
    assert os.listdir(keeper.folder) == []


def test_a_generation_is_replaced_only_once_both_ranks_have_a_newer_one(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0, 1))
    both = [worker(keeper.folder, rank, 2) for rank in (0, 1)]
    assert all(save(client, 1, rank, world=2) for rank, client in enumerate(both))
    assert [save(both[0], step, 0, world=2) for step in (2, 3, 4)] == [True, True, False]
    assert keeper.look() == [(0, 3, (0,)), (0, 2, (0,)), (0, 1, (0, 1))]
    assert save(both[1], 2, 1, world=2)
    keeper.look_until(lambda held: (0, 2, (0, 1)) in held)
    assert save(both[0], 5, 0, world=2)
    assert (0, 2, (0, 1)) in keeper.look()
    keeper.begin_attempt(1, (0, 1))
    assert any("1 saves were not kept" in each for each in keeper.notes)
    for client in both:
        client.close()


def test_too_little_memory_is_said_once(start: Starts) -> None:
    keeper = start(limit_bytes=5 << 20)
    keeper.begin_attempt(0, (0, 1))
    for rank in (0, 1):
        client = worker(keeper.folder, rank, 2)
        with pytest.raises(MemoryUnavailable, match=f"too little memory for checkpoints of rank {rank}: 3 buffers"):
            client.begin(1, 3 << 20)
        client.close()
    keeper.look()
    assert len(keeper.notes) == 1 and "--ckpt-memory allows 5.0 MiB" in keeper.notes[0]
    assert not memory_of(keeper.process.pid)


def attach(folder: str, **changed: int) -> socket.socket:
    connection = place.connect(folder, LIMIT_S)
    connection.sendall(frame(Attach(**{"rank": 0, "world_size": 1, "attempt": 0, **changed})))
    return connection


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000, b"\0\0\0\x01\xc1", frame(Begin(step=1)), b"\0\0\0\0" * 9],
)
def test_a_stranger_is_hung_up_on_and_ranks_are_served_on(start: Starts, sent: bytes) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    with place.connect(keeper.folder, LIMIT_S) as stranger:
        try:
            stranger.sendall(sent)
            assert stranger.recv(1) == b""
        except ConnectionError:
            pass
        assert save(client, 1) and keeper.look() == [(0, 1, (0,))]
    client.close()


def test_600_that_say_nothing_keep_no_rank_out(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0, 1))
    first = worker(keeper.folder, 0, 2)
    idle = [place.connect(keeper.folder, LIMIT_S) for _ in range(600)]
    second = worker(keeper.folder, 1, 2)
    assert save(first, 1, 0, world=2) and save(second, 1, 1, world=2)
    assert keeper.look() == [(0, 1, (0, 1))]
    for each in idle:
        each.close()
    first.close()
    second.close()


def test_a_folder_may_have_a_longer_path_than_a_socket(start: Starts, tmp_path: Path) -> None:
    keeper = start(tmp_path / ("long" * 20) / ("longer" * 20))
    assert len(keeper.folder) > 108
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    assert save(client, 1) and keeper.look() == [(0, 1, (0,))]
    client.close()


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    refused(str(tmp_path), "has mode 755")


def test_an_agent_of_another_version_is_refused(tmp_path: Path) -> None:
    refused(str(tmp_path), "speaks version 1, its agent 2", schema=2)


def refused(folder: str, why: str, schema: int = 1) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(command(theirs.fileno()), pass_fds=[theirs.fileno()], cwd="/")
        theirs.close()
        ours.settimeout(LIMIT_S)
        ours.sendall(frame(KeeperSetup(schema=schema, folder=folder)))
        came = b""
        while content := ours.recv(1 << 16):
            came += content
        assert why.encode() in came and process.wait(LIMIT_S) == 1
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schema": 2}, b"speaks version 1, this worker 2"),
        ({"attempt": 1}, b"serves attempt 0 of 1 ranks, this worker is of attempt 1 of 1 ranks"),
        ({"world_size": 2}, b"this worker is of attempt 0 of 2 ranks"),
        ({"rank": 1}, b"rank 1 is not one of this node's"),
    ],
)
def test_a_worker_that_does_not_belong_here_is_told_why(start: Starts, changed: dict[str, int], why: bytes) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    with attach(keeper.folder, **changed) as connection:
        assert why in connection.recv(1 << 16)


def test_a_worker_of_an_older_attempt_is_hung_up_on(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    assert save(client, 1)
    keeper.begin_attempt(1, (0,), resumed_step=1)
    with pytest.raises(MemoryUnavailable):
        save(client, 2)
    assert keeper.look() == [(0, 1, (0,))]


def test_a_part_that_is_written_after_its_digest_is_refused(start: Starts) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    layout = segment.layout([("w", "uint8", (9,), 9)], b"")
    buffer = client.begin(1, layout.used_bytes)
    assert isinstance(buffer, Buffer)
    segment.write_head(buffer.view, layout, 0, 1, 0, 1)
    client.copied(buffer, layout.used_bytes)
    assert keeper.look() == [(0, 1, (0,))]
    buffer.view[layout.offsets[0]] ^= 1
    part = client.fetch(0, 1)
    assert part is not None
    with part, pytest.raises(SegmentRefused, match="digest"):
        segment.read(part.view, part.used_bytes, part.digest)
    client.close()


def test_what_was_fetched_can_be_let_go_of_while_others_look_at_it(start: Starts) -> None:
    """They keep their ground, and the buffer is used again."""
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    assert save(client, 1)
    part = client.fetch(0, 1)
    assert part is not None
    looked_at = memoryview(part.view).cast("Q")
    array = np.frombuffer(part.view, dtype="uint8")
    part.close()
    assert looked_at[0] and array[0]
    for step in (2, 3, 4, 5):
        assert save(client, step) and keeper.look()
    assert keeper.look() == [(0, 5, (0,)), (0, 4, (0,)), (0, 3, (0,))]
    client.close()


def test_after_a_part_that_was_too_large_smaller_ones_are_kept_on(start: Starts) -> None:
    keeper = start(limit_bytes=30 << 20)
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    assert save(client, 1)
    with pytest.raises(MemoryUnavailable, match="too little memory"):
        client.begin(2, 40 << 20)
    assert save(client, 3) and keeper.look()[0] == (0, 3, (0,))
    client.close()


def test_a_forked_child_does_not_speak_for_its_parent(start: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = start()
    keeper.begin_attempt(0, (0,))
    client = worker(keeper.folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(MemoryUnavailable, match="belongs to process"):
            client.begin(1, 10_000)
    assert save(client, 1)
    client.close()
