"""The journal is the truth about a run: what it says is what happened, even after a crash while writing."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.errors import UserError
from robust_run.launcher.core.state import policy_of
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import OpenStore
from robust_run.launcher.model.events import RankExited, StoreOpened
from robust_run.launcher.model.job import JobSpec, NodeInfo, OutputStreams, Std
from robust_run.launcher.model.node_events import JobStarted, NodeJoined
from robust_run.launcher.records.journal import Journal, in_force
from robust_run.launcher.records.journal_reading import read

SPEC = JobSpec(
    argv=("python", "train.py"),
    script="train.py",
    is_python=True,
    nproc=1,
    run_id="r",
    rdzv_id="r",
    log_dir="/tmp",
    streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
)


HAPPENED = (
    JobStarted(),
    NodeJoined(node=NodeInfo(id="a", name="here", nproc=1)),
    StoreOpened(attempt=0, node="a", address="127.0.0.1", port=4000),
    RankExited(attempt=0, rank=0, exit_code=-9),
)
DONE = OpenStore(attempt=0, node="a")


def fail(path: str, error: OSError) -> None:
    raise AssertionError((path, error))


def write(path: Path) -> Journal:
    journal = Journal(str(path), SystemClock(), fail)
    journal.open_with(SPEC, "here")
    for number, event in enumerate(HAPPENED):
        journal.event(event, 1.0 + number / 2, [DONE] if event is HAPPENED[-1] else ())
    assert journal.wait_durable(60.0)
    return journal


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "j")
    header, entries = read(str(tmp_path / "j"))
    assert header.job == SPEC
    assert [entry.event or entry.action for entry in entries] == [*HAPPENED, DONE]


def test_replaying_the_events_gives_the_state_of_the_core(tmp_path: Path) -> None:
    write(tmp_path / "j")
    _, entries = read(str(tmp_path / "j"))
    past = [(entry.event, entry.mono) for entry in entries if entry.event is not None]
    state = replay(policy_of(SPEC), past)
    assert state.ending is not None
    assert state.detected_at_s == 2.5


def test_an_event_and_what_follows_from_it_are_one_write_so_that_no_kill_comes_between(tmp_path: Path) -> None:
    written: list[bytes] = []

    def keeping(descriptor: int, data: bytes) -> int:
        written.append(data)
        return os.write(descriptor, data)

    journal = Journal(str(tmp_path / "j"), SystemClock(), fail, write=keeping)
    journal.event(HAPPENED[3], 1.0, [DONE, DONE])
    assert len(written) == 1
    assert written[0].count(b"\n") == 3
    assert journal.wait_durable(60.0)


def test_a_record_after_a_torn_one_is_whole(tmp_path: Path) -> None:
    written: list[int] = []

    def filling(descriptor: int, data: bytes) -> int:
        """Write some of the third line, then nothing, then all again."""
        written.append(len(data))
        if len(written) == 3:
            return os.write(descriptor, data[:20])
        if len(written) == 4:
            raise OSError(errno.ENOSPC, "no space left")
        return os.write(descriptor, data)

    journal = Journal(str(tmp_path / "j"), SystemClock(), lambda _path, _error: None, write=filling)
    journal.open_with(SPEC, "here")
    for number, event in enumerate(HAPPENED):
        journal.event(event, float(number), [DONE] if event is HAPPENED[-1] else ())
    found = [entry.event or entry.action for entry in read(str(tmp_path / "j"))[1]]
    assert found == [HAPPENED[0], HAPPENED[3], DONE]


def test_what_a_replaced_controller_still_writes_is_void(tmp_path: Path) -> None:
    old = write(tmp_path / "j")
    new = Journal(str(tmp_path / "j"), SystemClock(), fail)
    new.term = 2
    new.event(HAPPENED[1], 9.0)
    old.event(HAPPENED[3], 9.5)
    new.event(HAPPENED[2], 10.0)
    entries = list(in_force(read(str(tmp_path / "j"))[1]))
    assert [entry.mono for entry in entries[-2:]] == [9.0, 10.0]
    assert [entry.term for entry in entries] == [1] * 5 + [2, 2]


def test_whoever_only_looks_whether_somebody_has_it_is_waited_for(tmp_path: Path) -> None:
    looks, continues = (
        Journal(str(tmp_path / "journal.jsonl"), SystemClock(), lambda _path, _error: None) for _ in range(2)
    )
    assert looks.claim()
    assert not continues.claim()
    letting_go = threading.Timer(0.2, looks.close)
    letting_go.start()
    assert continues.claim(60.0)
    letting_go.join()
    continues.close()


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_torn_last_line_is_skipped(tmp_path: Path, cut: int) -> None:
    write(tmp_path / "j")
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-cut])
    assert len(read(str(tmp_path / "j"))[1]) == (5 if cut == 1 else 4)


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"schema": 99}\n', b'{"schema": 1}\n', b"\x00\xff\n"])
def test_a_file_that_is_no_journal_or_too_new_is_refused_clearly(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(UserError, match=r"journal|newer"):
        read(str(tmp_path / "j"))


def test_a_journal_that_cannot_be_written_says_it_once_and_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    journal = Journal(str(tmp_path / "no" / "such" / "j"), SystemClock(), lambda path, error: said.append(path))
    journal.open_with(SPEC, "here")
    journal.event(JobStarted(), 1.0)
    assert journal.wait_durable(60.0)
    assert len(said) == 1
