"""An agent looks at its folder of checkpoints: in a thread, so that a storage that hangs holds up nothing."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import wait_for
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io import briefly, newest
from robust_run.ckpt_io.notes import leave_save as leave_note
from robust_run.ckpt_io.notes import read_save as read_note
from robust_run.ckpt_io.seen import FolderLook, MemoryGeneration, MemoryHeld, SeenCheckpoint
from robust_run.launcher.agent.checkpoint import lookup as agent_checkpoints
from robust_run.launcher.agent.checkpoint.lookup import AgentCheckpoints
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.resume_events import LookForCheckpoints, ResumePoint, SavedCheckpoint


def question(folder: Path, number: int = 1, **more: object) -> LookForCheckpoints:
    return LookForCheckpoints(attempt=0, folder=str(folder), number=number, **more)  # type: ignore[arg-type]


class Loop:
    """Calls what threads want called, when the test says so."""

    def __init__(self) -> None:
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.put(call)

    def run_one(self) -> None:
        self.calls.get(timeout=60)()


def test_without_a_loop_the_answer_is_there_when_the_call_returns(tmp_path: Path) -> None:
    made = make_checkpoint([tmp_path / "step-3"], {"x": b"1"}, step=3)
    told: list[CheckpointsSeen] = []
    AgentCheckpoints(str(tmp_path), told.append).look(question(tmp_path))
    (answer,) = told
    assert (answer.attempt, answer.number) == (0, 1)
    assert answer.look is not None
    (seen,) = answer.look.seen
    assert (seen.name, seen.uuid, seen.step, seen.fault) == ("step-3", made.uuid, 3, "")


def test_with_one_it_comes_by_way_of_it(tmp_path: Path) -> None:
    told: list[CheckpointsSeen] = []
    loop = Loop()
    agent = AgentCheckpoints(str(tmp_path), told.append)
    agent.attach(loop.soon)
    agent.look(question(tmp_path))
    loop.run_one()
    assert [answer.look for answer in told] == [FolderLook()]


def test_a_storage_that_hangs_holds_nothing_up_and_is_heard_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    def slow(folder: str, **_: object) -> FolderLook:
        hangs.wait(60)
        return FolderLook(seen=(SeenCheckpoint(name=folder),))

    monkeypatch.setattr(agent_checkpoints, "look", slow)
    monkeypatch.setattr(agent_checkpoints, "AT_ONCE_S", 0.01)
    told: list[CheckpointsSeen] = []
    loop = Loop()
    agent = AgentCheckpoints(None, told.append)
    agent.look(question(tmp_path / "a"))
    assert told == []
    agent.attach(loop.soon)
    for number in (2, 3):  # only the newest question is worth an answer: one thread at a time waits for a dead disk
        agent.look(question(tmp_path / "b", number))
    assert sum(thread.name == "checkpoints" for thread in threading.enumerate()) == 1
    hangs.set()
    loop.run_one()
    loop.run_one()
    wait_for(lambda: [answer.number for answer in told] == [1, 3], "the answers")


def test_what_is_in_memory_is_told_while_the_folder_hangs_and_the_folder_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    def slow(folder: str, **_: object) -> FolderLook:
        hangs.wait(60)
        return FolderLook(seen=(SeenCheckpoint(name=folder),))

    monkeypatch.setattr(agent_checkpoints, "look", slow)
    monkeypatch.setattr(agent_checkpoints, "FOLDER_S", 0.01)
    held = (MemoryGeneration(attempt=0, step=7, world_size=1, ranks=(0,)),)
    told: list[CheckpointsSeen] = []
    loop = Loop()
    agent = AgentCheckpoints(str(tmp_path), told.append, lambda: MemoryHeld(generations=held, room_bytes=77))
    agent.attach(loop.soon)
    for number in (1, 2):
        agent.look(question(tmp_path, number))
        loop.run_one()
        assert (told[-1].number, told[-1].look, told[-1].memory) == (number, None, held)
    hangs.set()
    loop.run_one()
    loop.run_one()
    assert {(answer.number, answer.look is None, answer.memory) for answer in told[2:]} == {
        (1, False, held),
        (2, False, held),
    }


def test_a_node_that_is_asked_for_its_memory_alone_leaves_the_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_checkpoints, "look", None)
    held = (MemoryGeneration(attempt=0, step=7, world_size=1, ranks=(), copies=(0,)),)
    told: list[CheckpointsSeen] = []
    loop = Loop()
    agent = AgentCheckpoints(str(tmp_path), told.append, lambda: MemoryHeld(generations=held, room_bytes=77))
    agent.attach(loop.soon)
    agent.look(question(tmp_path, memory_only=True))
    loop.run_one()
    assert [(answer.memory, answer.memory_room_bytes) for answer in told] == [(held, 77)]


def test_a_node_without_a_folder_looks_where_the_others_do(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "mine" / "step-1"], {}, step=1)
    make_checkpoint([tmp_path / "theirs" / "step-2"], {}, step=2)
    for own, step in ((str(tmp_path / "mine"), 1), (None, 2)):
        told: list[CheckpointsSeen] = []
        AgentCheckpoints(own, told.append).look(question(tmp_path / "theirs"))
        assert told[0].look is not None
        assert [seen.step for seen in told[0].look.seen] == [step]


def test_what_was_chosen_is_where_this_node_sees_it(tmp_path: Path) -> None:
    made = make_checkpoint([tmp_path / "renamed here"], {"x": b"1"}, step=3)
    agent = AgentCheckpoints(str(tmp_path), lambda _: None)
    agent.look(question(tmp_path))
    point = ResumePoint(source="storage", step=3, uuid=made.uuid, name="step-3", address="/ckpt/step-3")
    assert agent.path_of(point) == f"{tmp_path}/renamed here"
    unseen = ResumePoint(source="storage", step=4, uuid="0" * 32, name="step-4", address="/ckpt/step-4")
    assert agent.path_of(unseen) == f"{tmp_path}/step-4", (
        "its ranks are told the same: they fail, and do not begin anew"
    )
    own = ResumePoint(source="storage", step=3, name="step-3", address="/ckpt/step-3")
    assert agent.path_of(own) == f"{tmp_path}/renamed here"
    assert agent.path_of(ResumePoint()) == ""
    assert agent.path_of(ResumePoint(source="memory", address="rrck+memory://x")) == "rrck+memory://x"
    assert AgentCheckpoints(None, lambda _: None).path_of(point) == "/ckpt/step-3"


def test_what_was_read_ahead_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint([tmp_path / "step-1"], {}, step=1)
    told: list[CheckpointsSeen] = []
    agent = AgentCheckpoints(str(tmp_path), told.append)
    agent.prepare()
    wait_for(lambda: agent._known and agent._thread is None, "the thread")
    read: list[str] = []
    decoded = briefly.decoded

    def noted(*arguments: object) -> object:
        read.append("again")
        return decoded(*arguments)

    monkeypatch.setattr(newest, "decoded", noted)
    monkeypatch.setattr(briefly, "decoded", noted)
    agent.look(question(tmp_path))
    assert [seen.step for seen in told[0].look.seen] == [1]
    assert len(read) == 1, "for its parts alone"
    os.utime(tmp_path / "step-1" / "MANIFEST")
    agent.look(question(tmp_path, 2))
    assert len(read) == 3, "it may be another one"


# --- what ranks have saved


def rank_folders(run: Path, attempt: int = 0) -> list[str]:
    folders = [run / f"attempt_{attempt}" / str(rank) for rank in range(2)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return [str(folder) for folder in folders]


def worker(run: Path, rank: int = 0) -> dict[str, str]:
    return {"ROBUST_RUN_DIR": str(run), "TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(rank)}


def test_what_a_rank_commits_is_known_even_when_it_is_gone(tmp_path: Path) -> None:
    folders = rank_folders(tmp_path / "run")
    agent = AgentCheckpoints(str(tmp_path / "ckpt"), lambda _: None)
    assert agent.newest_save(folders) is None
    leave_note(f"{tmp_path}/ckpt/step-3", "a3", 3, 30.0, worker(tmp_path / "run"))
    leave_note(f"{tmp_path}/ckpt/step-2", "a2", 2, 20.0, worker(tmp_path / "run", 1))
    assert agent.newest_save(folders) == SavedCheckpoint(step=3, uuid="a3", name="step-3", created_unix_s=30.0)


def test_only_what_counts_as_a_checkpoint_of_the_folder_is_known(tmp_path: Path) -> None:
    folders = rank_folders(tmp_path / "run")
    agent = AgentCheckpoints(str(tmp_path / "ckpt"), lambda _: None)
    for url in (f"{tmp_path}/export/step-3", f"{tmp_path}/ckpt/step-3.tmp", "hdfs://nn/ckpt/step-3"):
        leave_note(url, "a3", 3, 30.0, worker(tmp_path / "run"))
        assert agent.newest_save(folders) is None, url
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked = AgentCheckpoints(str(tmp_path / "link"), lambda _: None)
    linked.look(question(tmp_path))
    for url in (f"{tmp_path}/link/step-3", f"{tmp_path}/real/step-3"):
        leave_note(url, "a3", 3, 30.0, worker(tmp_path / "run"))
        assert linked.newest_save(folders) is not None, url


def test_a_note_that_cannot_be_left_or_read_is_none(tmp_path: Path) -> None:
    leave_note("/ckpt/step-3", "a3", 3, 30.0, worker(tmp_path / "nowhere"))
    leave_note("/ckpt/step-3", "a3", 3, 30.0, {})
    (folder, other) = rank_folders(tmp_path / "run")
    for torn in (b"", b"{", b'{"schema":2,"uuid":"a","name":"b"}', b'{"uuid":"../a","name":"b"}', b"[" * 20_000):
        Path(folder, "saved.json").write_bytes(torn)
        assert read_note(folder) is None, torn
    os.mkfifo(Path(other, "saved.json"))
    assert read_note(other) is None, "and it is not waited for"


def test_the_first_save_of_an_attempt_is_told_soon_and_later_ones_seldom(tmp_path: Path) -> None:
    agent = AgentCheckpoints(str(tmp_path / "ckpt"), lambda _: None)
    folders = rank_folders(tmp_path / "run")
    told = []
    for second in range(200):
        if second >= 5:
            leave_note(f"{tmp_path}/ckpt/step-{second}", f"a{second}", second, float(second), worker(tmp_path / "run"))
        found = agent.look_for_saves(0, folders)
        told += [(second, found.step)] if found is not None else []
    assert told[0] == (5, 5) and len(told) < 12
    assert all(later - earlier >= 2 for (earlier, _), (later, _) in pairwise(told))
    assert agent.look_for_saves(1, rank_folders(tmp_path / "run", 1)) is None, "of the attempt that runs"
