"""The fleet's memory in a folder: many writers without locks, readers that nothing misleads, names that lead nowhere else."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import PlatformError
from robust_run.fleet.files import index
from robust_run.fleet.found import Found
from robust_run.fleet.words import SCHEMA, CodeFacts, IncidentFacts, Lost, RunFacts, StartFacts
from robust_run.launcher.operator.reading.runs import runs_in
from robust_run.launcher.operator.reading.several import holds_runs, runs_page
from robust_run.launcher.operator.reading.startups import read_profile

BEGAN_S = 1767225600.0


def facts(run_id: str = "r1", began_s: float = BEGAN_S, **changes: object) -> RunFacts:
    one = RunFacts(run_id=run_id, began_s=began_s, until_s=began_s + 3600.0, state="done", node_s={"gpu-1": 3600.0})
    return msgspec.structs.replace(one, **changes)


hosts = st.text("abcgpu-.0123456789", min_size=1, max_size=12)
seconds = st.floats(0, 1e9)
incidents = st.builds(
    IncidentFacts,
    number=st.integers(0, 99),
    at_s=st.floats(0, 1e11),
    symptom=st.text(max_size=20),
    kind=st.sampled_from(["crash", "hang", "node_lost"]),
    component=st.sampled_from(["gpu", "network", "unknown"]),
    nodes=st.lists(hosts, max_size=3).map(tuple),
    evicted=st.lists(hosts, max_size=3).map(tuple),
    lost=st.builds(Lost, detect=seconds, load=seconds),
)
runs = st.builds(
    RunFacts,
    run_id=st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True),
    began_s=st.floats(0, 1e11),
    until_s=st.floats(2e11, 9e11),
    node_s=st.dictionaries(hosts, seconds, max_size=4),
    ettr=st.none() | st.floats(0, 1),
    incidents=st.lists(incidents, max_size=3).map(tuple),
    starts=st.lists(
        st.builds(StartFacts, attempt=st.integers(0, 9), at_s=seconds, nodes=st.integers(1, 9)), max_size=2
    ).map(tuple),
    code=st.lists(st.builds(CodeFacts, version=st.text(max_size=8)), max_size=2).map(tuple),
)


def test_what_a_run_keeps_is_read_again(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts("r1"))
    index.keep(str(tmp_path), facts("r2", BEGAN_S + 60))
    found = index.read(str(tmp_path))
    assert [each.run_id for each in found.facts] == ["r1", "r2"] and not found.left_out


@given(run=runs)
def test_any_facts_that_can_be_kept_come_back_as_they_were(run: RunFacts) -> None:
    data = index.encoded(run)
    assert index.decoded(data, index.name_of(run)) == run


def test_a_resumed_run_replaces_what_it_kept_and_another_of_its_name_does_not(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts("r1", state="failed"))
    index.keep(str(tmp_path), facts("r1", until_s=BEGAN_S + 9999, state="done"))
    index.keep(str(tmp_path), facts("r1", BEGAN_S + 86400))
    assert [(each.state, each.began_s) for each in index.read(str(tmp_path)).facts] == [
        ("done", BEGAN_S),
        ("done", BEGAN_S + 86400),
    ]


def test_no_folder_is_no_memory_and_no_fault(tmp_path: Path) -> None:
    assert index.read(str(tmp_path / "none")) == Found()


@pytest.mark.parametrize("run_id", ["../../etc", "a/b", "", "x" * 129, "a\0b", "a\nb", "é"])
def test_a_run_id_that_would_lead_elsewhere_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(PlatformError, match="no name for a file"):
        index.keep(str(tmp_path), facts(run_id))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("began_s", [-1.0, 1e12, float("nan"), float("inf")])
def test_a_run_without_a_beginning_is_refused(tmp_path: Path, began_s: float) -> None:
    with pytest.raises(PlatformError):
        index.keep(str(tmp_path), facts(began_s=began_s))


def test_facts_that_are_too_large_are_not_kept(tmp_path: Path) -> None:
    many = {f"node-{number:06d}-{'x' * 40}": 1.0 for number in range(90_000)}
    with pytest.raises(PlatformError, match="at most"):
        index.keep(str(tmp_path), facts(node_s=many))


def test_nothing_of_it_is_taken_for_a_run(tmp_path: Path) -> None:
    for run_id in ("attempt_1", "journal.jsonl", "store.log", "startup.json", "slurm-7", "r"):
        index.keep(str(tmp_path), facts(run_id))
    assert runs_in(str(tmp_path)) == [] and not holds_runs(str(tmp_path))
    assert runs_page(str(tmp_path), {}, ask=lambda _: b"").runs == ()
    assert runs_in(index.folder_of(str(tmp_path))) == []
    assert not holds_runs(index.folder_of(str(tmp_path)))
    assert not read_profile([str(tmp_path)]).runs


def test_git_passes_it_over(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts())
    assert (tmp_path / ".fleet" / ".gitignore").read_text() == "*\n"


def test_a_folder_of_a_group_has_a_memory_of_the_group_and_one_of_all_the_world_has_not(tmp_path: Path) -> None:
    for mode, is_groups, is_anybodys in ((0o2770, True, False), (0o700, False, False), (0o1777, False, False)):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        index.keep(str(folder), facts())
        made = stat.S_IMODE((folder / ".fleet").stat().st_mode)
        assert bool(made & stat.S_IWGRP) == is_groups and bool(made & stat.S_IWOTH) == is_anybodys


def test_files_say_their_version(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts())
    assert (tmp_path / ".fleet" / "1767225600-r1.json").read_bytes().startswith(b'{"schema":1,')


@given(data=st.binary(max_size=200))
def test_any_bytes_are_facts_or_counted(data: bytes) -> None:
    assert index.decoded(data, "1767225600-r1.json") in ("damaged", "other version")


@given(run=runs, cut=st.integers(0, 10_000), flip=st.integers(0, 255), at=st.integers(0, 10_000))
def test_truncated_and_changed_files_never_raise(run: RunFacts, cut: int, flip: int, at: int) -> None:
    data = bytearray(index.encoded(run))
    name = index.name_of(run)
    assert index.decoded(bytes(data[: min(cut, len(data) - 1)]), name) == "damaged"
    data[at % len(data)] ^= flip
    assert isinstance(index.decoded(bytes(data), name), (RunFacts, str))


def test_what_cannot_be_understood_is_counted_and_hides_nothing(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts("good"))
    folder = tmp_path / ".fleet"
    newer = {"schema": SCHEMA + 1, "run_id": "newer", "began": "in another way"}
    (folder / "1767225600-newer.json").write_bytes(msgspec.json.encode(newer))
    (folder / "1767225600-cut.json").write_bytes(index.encoded(facts("cut"))[:50])
    (folder / "1767225600-empty.json").write_bytes(b"")
    (folder / "1767225600-renamed.json").write_bytes(index.encoded(facts("another")))
    (folder / "1767225600-deep.json").write_bytes(b"[" * 100_000)
    (folder / "notes.txt").write_text("people write here")
    (folder / "1767225600-folder.json").mkdir()
    os.mkfifo(folder / "1767225600-pipe.json")
    (folder / "1767225600-link.json").symlink_to("/etc/passwd")
    (folder / "1767225600-large.json").write_bytes(b" " * (index.MOST_BYTES + 1))
    (folder / ".draft-1-ab").write_bytes(b"{")
    found = index.read(str(tmp_path))
    assert [each.run_id for each in found.facts] == ["good"]
    assert found.left_out == {"other version": 1, "damaged": 4, "foreign": 4, "unreadable": 1}
    assert found.left_out_words() == "4 damaged, 4 foreign, 1 other version, 1 unreadable"


@pytest.mark.parametrize(
    "changes",
    [
        {"until_s": BEGAN_S - 1},
        {"node_s": {"gpu-1": -1.0}},
        {"node_s": {"gpu-1": 9e11}},
        {"nodes": 10**11},
        {"ranks": 10**11},
        {"effective_s": 9e11},
        {"ettr": 50.0},
        {"node_s": {"": 1.0}},
        {"node_s": {"gpu\x1b[2J": 1.0}},
        {"node_s": {"x" * 254: 1.0}},
        {"incidents": (IncidentFacts(number=1, at_s=BEGAN_S, symptom="", kind="crash", nodes=("a\nb",)),)},
        {"incidents": (IncidentFacts(number=1, at_s=BEGAN_S, symptom="", kind="crash", lost=Lost(load=-5.0)),)},
    ],
)
def test_impossible_facts_are_refused_by_writers_and_readers(tmp_path: Path, changes: dict[str, object]) -> None:
    bad = msgspec.structs.replace(facts(), **changes)
    assert index.decoded(index.encoded(bad), index.name_of(bad)) == "damaged"
    with pytest.raises(PlatformError, match="would not be read again"):
        index.keep(str(tmp_path), bad)


def test_a_folder_that_cannot_be_written_raises_what_the_system_says(tmp_path: Path) -> None:
    (tmp_path / ".fleet").write_text("a file")
    with pytest.raises(OSError):
        index.keep(str(tmp_path), facts())
    assert index.read(str(tmp_path)).left_out == {"unreadable": 1}


def test_only_the_newest_are_read_where_there_are_too_many(tmp_path: Path) -> None:
    for number in range(5):
        index.keep(str(tmp_path), facts(f"r{number}", BEGAN_S + number))
    found = index.read(str(tmp_path), 2)
    assert [each.run_id for each in found.facts] == ["r3", "r4"] and found.left_out == {"too many": 3}


_WRITER = """
import sys
from robust_run.fleet.files import index
from robust_run.fleet.words import RunFacts
folder, who = sys.argv[1:]
print("begins", flush=True)
for number in range(10**9 if who == "endless" else 40):
    nodes = {f"gpu-{each}": 1.0 for each in range(200)}
    run = "shared" if number % 2 else f"{who}-{number}"
    index.keep(folder, RunFacts(run_id=run, began_s=1767225600.0, until_s=1767225601.0 + number, node_s=nodes))
"""


def _writer(folder: Path, who: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", _WRITER, str(folder), who]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


def test_many_writers_at_once_and_one_that_is_killed_in_the_middle_leave_whole_files(tmp_path: Path) -> None:
    writers = [_writer(tmp_path, f"w{number}") for number in range(3)]
    doomed = _writer(tmp_path, "endless")
    assert doomed.stdout is not None and doomed.stdout.readline()
    while any(each.poll() is None for each in writers):  # readers see whole files at every moment
        assert not index.read(str(tmp_path)).left_out
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    assert [each.wait() for each in writers] == [0, 0, 0]
    found = index.read(str(tmp_path))
    assert not found.left_out
    names = {each.run_id for each in found.facts}
    assert {f"w{who}-{number}" for who in range(3) for number in range(0, 40, 2)} | {"shared"} <= names
    for each in writers:
        each.communicate()
