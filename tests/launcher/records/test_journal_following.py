"""A journal that is followed while another process writes it says the same as one that is read when all is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_job import PEER, World, plain

from robust_run.clock import SystemClock
from robust_run.launcher.core.state import policy_of
from robust_run.launcher.core.step import replay, step
from robust_run.launcher.model.job import JobSpec, ManyNodes, OutputStreams, Std
from robust_run.launcher.records.folds.past_incidents import PastIncidents
from robust_run.launcher.records.incidents import FROM_FILES, IncidentBook
from robust_run.launcher.records.journal import Journal, JournalEntry, events_of, in_force
from robust_run.launcher.records.journal_following import PIECE_BYTES, JournalFollower
from robust_run.launcher.records.journal_reading import read
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.controller_past import Past

SPEC = JobSpec(
    argv=("python", "train.py"),
    script="train.py",
    is_python=True,
    nproc=1,
    run_id="r",
    rdzv_id="r",
    log_dir="/tmp",
    streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
    max_restarts=1000,
    diagnose="never",
    many=ManyNodes(host="h", port=1, fewest=2, most=2),
)
POLICY = policy_of(SPEC)


def fail(*what: object) -> None:
    raise AssertionError(what)


def written(folder: Path, failures: int) -> Path:
    """Return the journal of a job of two nodes whose ranks fail again and again, with what was decided."""
    world = World(POLICY, 2)
    for which in range(failures):
        world.run(60.0, lambda: world.state.is_training)
        world.run(1.0)  # its workers run
        world.rank_exits(0, 1, PEER)
        world.run(60.0, lambda already=which: len(world.incidents) > already)
    path = folder / "journal.jsonl"
    journal = Journal(str(path), SystemClock(), fail)
    journal.open_with(SPEC, "here")
    state = type(world.state)()
    for event, now_s in world.journal:
        _, actions = step(POLICY, state, event, now_s)
        journal.event(event, now_s, actions)
    journal.close()
    assert len(world.incidents) == failures
    return path


def all_of(follower: JournalFollower, *, is_final: bool = False) -> list[JournalEntry]:
    """Return what is there by now."""
    found: list[JournalEntry] = []
    while True:
        piece = follower.read(is_final=is_final)
        assert piece is not None
        found += piece.entries
        if piece.is_last:
            return found


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a job that failed twice."""
    return written(tmp_path_factory.mktemp("run"), 2)


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 1 << 20), max_size=6))
def test_wherever_a_look_falls_the_lines_are_the_same(journal: Path, cuts: list[int]) -> None:
    whole = journal.read_bytes()
    growing = journal.parent / "growing.jsonl"
    growing.write_bytes(b"")
    follower = JournalFollower(str(growing))
    found: list[JournalEntry] = []
    for cut in sorted(cut % len(whole) for cut in cuts):
        growing.write_bytes(whole[:cut])
        found += all_of(follower)
    growing.write_bytes(whole)
    found += all_of(follower, is_final=True)
    assert found == read(str(journal))[1]
    assert follower.is_unchanged()


def test_what_is_torn_at_the_end_is_passed_over_only_once_nobody_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"schema":1}\n{"at":1.0,"mono":1.0,"event":{"type":"tick"}}\n{"at":2.0,"mo')
    follower = JournalFollower(str(path))
    assert len(all_of(follower)) == 1
    with path.open("ab") as file:
        file.write(b'no":2.0,"event":{"type":"tick"}}\n{"at":3')
    assert len(all_of(follower)) == 1
    assert not all_of(follower, is_final=True)


def test_a_part_that_is_not_here_yet_is_looked_at_again(tmp_path: Path) -> None:
    """A network file system may show what comes after it first, and nothing in its place."""
    path = tmp_path / "journal.jsonl"
    tick = b'{"at":1.0,"mono":1.0,"event":{"type":"tick"}}\n'
    path.write_bytes(b'{"schema":1}\n' + tick + bytes(len(tick) - 1) + b"\n" + tick)
    follower = JournalFollower(str(path))
    assert len(all_of(follower)) == 1
    path.write_bytes(b'{"schema":1}\n' + tick * 3)
    assert len(all_of(follower)) == 2
    assert follower.is_unchanged()


def test_a_line_that_stays_damaged_keeps_nobody_from_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    tick = b'{"at":1.0,"mono":1.0,"event":{"type":"tick"}}\n'
    path.write_bytes(b'{"schema":1}\n' + tick + b"garbage\n" + tick)
    follower = JournalFollower(str(path))
    assert [len(all_of(follower)) for _ in range(3)] == [1, 1, 0]


def test_another_file_and_a_changed_one_are_seen(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    follower = JournalFollower(str(path))
    assert all_of(follower)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"node_joined", b"node_jOined", 1))
    assert not follower.is_unchanged()
    path.write_bytes(whole[:200])
    assert follower.read() is None


async def _told(path: Path, *, followed: bytes | None = None) -> tuple[Past, int]:
    """Return what a controller knows that takes over, and how often others had their turn meanwhile. `followed`: what was there
    while it waited.
    """
    whole = path.read_bytes()
    past, turns, elected = Past(str(path), POLICY), 0, asyncio.Event()
    if followed is not None:
        path.write_bytes(followed)

    async def renew() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def election() -> None:
        await asyncio.sleep(0.05)
        elected.set()

    await past.beside(election())
    assert elected.is_set()
    path.write_bytes(whole)
    renewing = asyncio.ensure_future(renew())
    await past.finish()
    renewing.cancel()
    return past, turns


def test_whoever_takes_over_knows_what_the_journal_says_however_it_was_read(tmp_path: Path) -> None:
    path = written(tmp_path, 12)
    whole = path.read_bytes()
    entries = list(in_force(read(str(path))[1]))
    known = replay(POLICY, events_of(entries))
    followed = (None, b"", whole[: len(whole) // 2], whole, whole.replace(b'"exit_code":1', b'"exit_code":0'))
    for each in followed:
        past, _ = asyncio.run(_told(path, followed=each))
        assert plain(past.state) == plain(known)
        assert past.began_at == entries[0].at
        assert len(past.incidents.on_record.found) == 12


def test_a_leader_renews_its_lease_while_it_reads_a_long_journal(tmp_path: Path) -> None:
    """Reading may take longer than its lease lasts: it had lost the leadership by then, and so had each one after it."""
    path = written(tmp_path, 1)
    tick = b'{"at":1.0,"mono":1.0,"event":{"type":"tick"}}\n'
    with path.open("ab") as file:
        file.write(tick * (8 * PIECE_BYTES // len(tick)))
    _, turns = asyncio.run(_told(path, followed=b""))
    assert turns >= 8


def test_files_of_old_incidents_are_not_read_by_whoever_takes_over(tmp_path: Path) -> None:
    """Of thousands of them that takes longer than its lease."""
    path = written(tmp_path, 1)
    entries = list(in_force(read(str(path))[1]))
    past = PastIncidents()
    for _ in range(FROM_FILES + 3):
        for entry in entries:
            past.take(entry)
    complaints: list[object] = []
    book = IncidentBook(
        SystemClock(), RunDirectory(str(tmp_path), str(tmp_path)), lambda _: None, lambda *what: complaints.append(what)
    )
    book.take_over(past)
    assert [each.id for each in book.incidents] == list(range(1, FROM_FILES + 4))
    assert len(list((tmp_path / "incidents").iterdir())) == FROM_FILES, "the newest were looked for, and written"
    assert not complaints
