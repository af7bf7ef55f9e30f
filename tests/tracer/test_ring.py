"""The ring file: what is written is read, whatever else may lie there breaks nobody, and it stays small."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_side import load_worker_side

from robust_run.tracer.files import ring, ring_content, ring_format
from robust_run.tracer.types import Group

CONTENT = st.binary(max_size=400)


@pytest.fixture(scope="module")
def worker_side() -> ModuleType:
    return load_worker_side()


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "steps.ring")
    ring.create(path, 1, 4)
    return path


@pytest.fixture
def written(worker_side: ModuleType, path: str):
    def fail(reason: Exception) -> None:
        raise reason

    return worker_side.load("recorder").Ring(path, fail)


def begin(written, number: int, *, state: int = 3) -> int:
    group = written.table.group("0", "default", range(4))
    return written.enter(group, 1, number, 1, -1, number, state)


def test_both_sides_have_the_same_layout(worker_side: ModuleType) -> None:
    recorder, table, witness, limits = (worker_side.load(each) for each in ("recorder", "table", "witness", "limits"))
    names = [name for name in dir(ring_format) if name.isupper() and hasattr(recorder, name)]
    assert {"OPS", "STATES", "DTYPES", "SLOT_FORMAT", "FILE_BYTES", "STATE_CELL"} <= set(names)
    assert {name: getattr(recorder, name) for name in names} == {name: getattr(ring_format, name) for name in names}
    assert table.TABLE_BYTES_CELL == ring_format.TABLE_BYTES_CELL
    assert limits.LIMITED == ring_format.LIMITED
    assert witness.STACKS_SIGNAL_BELOW_MAX == ring_format.STACKS_SIGNAL_BELOW_MAX


def test_a_new_ring_is_nobodys_private_and_small(path: str) -> None:
    status = os.stat(path)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size <= 1 << 20
    assert status.st_blocks * 512 >= status.st_size, "a page that a full memory cannot give would kill the worker"
    header = ring.RingReader(path).header()
    assert header is not None
    assert (header.pid, header.rank, header.world_size, header.ops, header.waiting_since_s) == (0, 1, 4, 0, None)


def test_where_there_is_no_room_there_is_no_ring(tmp_path: Path) -> None:
    program = """
import os, resource, sys
from robust_run.tracer.files import ring
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    ring.create(sys.argv[1], 0, 1)
except OSError:
    sys.exit(0 if not os.path.exists(sys.argv[1]) else 3)
sys.exit(4)
"""
    made = subprocess.run([sys.executable, "-c", program, str(tmp_path / "ring")], check=False)
    assert made.returncode == 0


def test_what_is_written_is_read_in_order(written, path: str) -> None:
    before = time.monotonic()
    for number in range(5):
        begin(written, number)
    trace = ring.read(path)
    assert trace is not None
    assert [op.seq for op in trace.ops] == [0, 1, 2, 3, 4]
    assert (trace.rank, trace.world_size, trace.pid) == (1, 4, os.getpid())
    assert trace.groups == (Group(name="0", desc="default", ranks=(0, 1, 2, 3)),)
    op = trace.ops[2]
    assert (op.group, op.op, op.numel, op.dtype, op.state, op.thread) == ("0", "all_reduce", 2, "float32", "done", 0)
    assert before <= op.at_s <= trace.last_at_s <= time.monotonic()
    assert op.site.startswith(f"{__file__}:")


def test_a_full_ring_keeps_the_newest_calls(written, path: str) -> None:
    for number in range(ring_format.SLOTS + 10):
        begin(written, number)
    trace = ring.read(path)
    assert trace is not None
    assert [op.numel for op in trace.ops] == list(range(10, ring_format.SLOTS + 10))


def test_a_limit_keeps_what_is_not_done(written, path: str) -> None:
    states = [3, 1, 3, 2, 3, 0, 4, 3, 3]
    for number, state in enumerate(states):
        begin(written, number, state=state)
    trace = ring.read(path, limit=2)
    assert trace is not None
    assert [op.numel for op in trace.ops] == [1, 3, 5, 7, 8]
    assert ring.read(path, limit=0).ops[-1].numel == 5


def test_a_slot_that_changes_hands_while_it_is_read_is_dropped(written, path: str) -> None:
    for number in range(3):
        begin(written, number)
    slots = bytearray(written.octets[ring_format.SLOTS_AT : ring_format.MARKS_AT])
    later = bytearray(slots)
    struct.pack_into("=Q", later, 64 + 56, ring_format.SLOTS + 2)
    assert [slot[ring_content.INDEX_FIELD] for slot in ring_content.whole_slots(bytes(slots), bytes(later), 3)] == [
        1,
        3,
    ]


def test_marks_of_the_newest_steps_are_kept(written, path: str) -> None:
    for _ in range(ring_format.MARKS + 3):
        written.mark_step()
    trace = ring.read(path)
    assert trace is not None
    assert (trace.steps, len(trace.marks)) == (ring_format.MARKS + 3, ring.MARKS_READ)
    assert sorted(trace.marks, key=lambda mark: mark.at_s) == list(trace.marks)


def test_a_reader_waits_for_its_file_and_can_be_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "late")
    reader = ring.RingReader(path)
    assert reader.header() is None
    ring.create(path, 0, 1)
    assert reader.header() is not None
    reader.close()
    assert reader.trace() is not None
    reader.close()


def test_a_file_that_shrinks_is_no_ring_any_more(path: str) -> None:
    reader = ring.RingReader(path)
    assert reader.header() is not None
    os.truncate(path, 10)
    assert reader.header() is None
    reader.close()


def test_creating_a_ring_again_leaves_the_old_one_to_whoever_maps_it(written, path: str) -> None:
    begin(written, 1)
    ring.create(path, 0, 2)
    begin(written, 2)
    trace = ring.read(path)
    assert trace is not None
    assert (trace.rank, trace.ops) == (0, ())


def test_a_folder_and_a_bad_name_are_no_rings(tmp_path: Path) -> None:
    assert ring.read(str(tmp_path)) is None
    assert ring.read("a\0name") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    st.binary(max_size=300),
    st.integers(0, ring_format.FILE_BYTES),
    CONTENT,
    st.integers(0, 12),
    st.integers(0, 2**64 - 1),
)
def test_junk_never_breaks_the_reader(
    tmp_path: Path, start: bytes, place: int, junk: bytes, cell: int, value: int
) -> None:
    path = tmp_path / "junk"
    path.write_bytes(start)
    assert ring.read(str(path)) is None
    ring.create(str(path), 1, 4)
    with path.open("r+b") as file:
        file.seek(cell * 8)
        file.write(struct.pack("=Q", value))
        file.seek(place)
        file.write(junk)
    reader = ring.RingReader(str(path))
    header, trace = reader.header(), reader.trace()
    reader.close()
    assert (header is None) == (trace is None)
    if trace is not None:
        assert len(trace.ops) <= ring_format.SLOTS
        assert len(trace.marks) <= ring.MARKS_READ


@settings(max_examples=200)
@given(st.lists(st.binary(min_size=56, max_size=56), min_size=1, max_size=8))
def test_any_slot_can_be_put_into_words(slots: list[bytes]) -> None:
    content = b"".join(body + struct.pack("=Q", number + 1) for number, body in enumerate(slots))
    content = content.ljust(ring_format.SLOTS * ring_format.SLOT_BYTES, b"\0")
    ops = [ring_content.to_op(slot, {}, {}) for slot in ring_content.whole_slots(content, content, len(slots))]
    assert len(ops) <= len(slots)
    assert all(op.op in ring_format.OPS[1:] and op.state in ring_format.STATES for op in ops)


@given(st.lists(st.integers(0, ring.LARGEST_WORLD - 1), max_size=60))
def test_ranks_survive_being_written_as_runs(worker_side: ModuleType, ranks: list[int]) -> None:
    assert ring_content.parse_ranks(worker_side.load("table").runs(ranks), 1000) == tuple(ranks)


def test_ten_thousand_ranks_take_a_few_bytes(worker_side: ModuleType) -> None:
    runs = worker_side.load("table").runs
    assert runs(range(10_000)) == "0-9999"
    assert runs(range(3, 10_000, 8)) == "3-9995/8"
    assert runs([0, 1, 2, 7, 9, 4]) == "0-2,7,9,4"


@pytest.mark.parametrize("text", ["0-99999999999", "5-", "-5", "1/0", "a", "0-1048575,0-1048575", "0-4/0", "٣", "1,,2"])
def test_ranks_that_make_no_sense_or_too_many_are_refused(text: str) -> None:
    assert ring_content.parse_ranks(text, 1 << 18) is None


@given(st.text(max_size=200))
def test_any_table_can_be_read(text: str) -> None:
    groups, sites = ring_content.parse_table(text.encode("utf-8", errors="replace"))
    assert all(isinstance(group, Group) for group in groups.values())
    assert all(isinstance(site, str) for site in sites.values())


def test_names_cannot_forge_lines_of_the_table(written, path: str) -> None:
    written.table.group("a\tb\nc", "d\r\te", range(2))
    trace = ring.read(path)
    assert trace is not None
    assert trace.groups == (Group(name="a b c", desc="d e", ranks=(0, 1)),)


def test_a_full_table_makes_the_rest_unknown(written, path: str) -> None:
    names = [f"{number}-" + "x" * 1000 for number in range(300)]
    written.table.living = lambda: set(range(300))
    groups = [written.table.group(name, "", range(2)) for name in names]
    trace = ring.read(path)
    assert trace is not None
    assert 200 < len(trace.groups) < 300
    assert groups[-1].index == 0
    assert (groups[-1].next_number(), groups[-1].next_number()) == (1, 2)


def test_groups_that_are_gone_and_code_that_is_not_run_any_more_make_room(written, path: str) -> None:
    """A program makes a group for each evaluation, and functions as it goes on: for months."""
    lasting = written.table.group("0", "default", range(4))
    begun = written.enter(lasting, 1, 7, 1, -1, 1)
    alive = {lasting.index}
    written.table.living = lambda: alive
    for number in range(12_000):
        if number % 2:
            group = written.table.group(f"{number}", "evaluation", range(2))
            assert 0 < group.index <= 0xFFFF
            alive = {lasting.index, group.index}
        else:
            exec(compile("def new(table, frame): table.site(frame())", f"/x/{number}.py", "exec"), found := {})
            found["new"](written.table, sys._getframe)
    trace = ring.read(path)
    assert trace is not None
    assert {"0", "11999"} <= {each.name for each in trace.groups}
    assert [op.group for op in trace.ops] == ["0"]
    assert trace.ops[0].site, "of the newest calls it stays known where they were made"
    assert begun == 0
    assert len(written.table.groups) < 6000


def test_a_table_that_is_being_made_anew_is_not_read(written, path: str) -> None:
    begin(written, 1)
    written.cells[ring_format.TABLE_GENERATION_CELL] = 1
    trace = ring.read(path)
    assert trace is not None
    assert (trace.groups, trace.ops[0].group) == ((), "")
    written.cells[ring_format.TABLE_GENERATION_CELL] = 2
    assert ring.read(path).groups  # type: ignore[union-attr]


def test_a_group_may_make_more_calls_than_fit_32_bits(written, path: str) -> None:
    """A thousand a second for 50 days."""
    numbers = (1 << 32) - 1, 1 << 32, (1 << 39) + 5
    for number in numbers:
        begin(written, number)
    assert [op.seq for op in ring.read(path).ops] == list(numbers)  # type: ignore[union-attr]
