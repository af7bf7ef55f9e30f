"""Whatever a file holds, reading it gives a trace or None, and takes no more memory than a file has room for."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robust_run.tracer.nccl.types import NcclTrace
from robust_run.tracer.plugin import layout, reader

ANYWHERE = st.integers(0, layout.FILE_BYTES - 1)
NUMBERS = st.one_of(st.integers(0, 20000), st.integers(0, (1 << 64) - 1))


@pytest.fixture
def path(tmp_path: Path) -> str:
    created = str(tmp_path / "file")
    layout.create(created)
    return created


def put(path: str, at: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(content)


def test_a_new_file_says_nothing(path: str) -> None:
    trace = reader.read(path)
    assert trace is not None
    assert (trace.communicators, trace.flows, trace.ops) == ((), (), ())
    assert (trace.glance.pid, trace.glance.api, trace.glance.event_s) == (0, 0, None)
    assert reader.glance(path) == trace.glance


def test_what_is_no_file_of_this_version(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("words " * 1000)
    for name in ("missing", "empty", "text", ".", "a\0b"):
        assert reader.read(str(tmp_path / name)) is None
        assert reader.glance(str(tmp_path / name)) is None
    put(path, 8, layout.cell(layout.VERSION + 1))
    assert reader.read(path) is None


def test_a_file_of_this_version_that_ends_early(path: str) -> None:
    for size in (layout.OPS_AT + 100, layout.FLOWS_AT + 100, layout.COMMS_AT + 1, 200):
        os.truncate(path, size)
        assert isinstance(reader.read(path), NcclTrace)
    os.truncate(path, 100)
    assert reader.read(path) is None


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert reader.read(str(tmp_path / "pipe")) is None


def test_counters_that_changed_while_they_were_read_are_put_in_order(path: str) -> None:
    key = layout.KEY_USED | 9 << layout.KEY_COMM_SHIFT | layout.KEY_SENDS
    put(path, 8 * layout.FLOWS_CELL, layout.cell(1))
    put(path, layout.FLOWS_AT, struct.pack("=24Q", key, *[0] * 7, 3, 5, 4, 4, *[0] * 12))
    trace = reader.read(path)
    assert trace is not None
    (flow,) = trace.flows
    assert (flow.posted, flow.gpu_ready, flow.transmitted, flow.done, flow.comm) == (5, 5, 4, 4, 9)


@pytest.mark.parametrize("newest", [-5, 0, 3, 10**9])
def test_no_more_operations_than_asked_for(path: str, newest: int) -> None:
    put(path, 8 * layout.OPS_CELL, layout.cell(10))
    for number in range(10):
        row = struct.pack(layout.OP_FORMAT, number + 1, 1, 2, number, *[0] * 12, b"AllReduce", b"ncclInt8")
        put(path, layout.OPS_AT + number * layout.OP_BYTES, row)
    trace = reader.read(path, newest)
    assert trace is not None
    assert [op.number for op in trace.ops] == list(range(10))[10 - max(0, min(newest, 10)) :]


def test_the_ring_goes_round(path: str) -> None:
    put(path, 8 * layout.OPS_CELL, layout.cell(layout.OPS + 2))
    for number in (layout.OPS - 2, layout.OPS - 1, layout.OPS, layout.OPS + 1):
        row = struct.pack(layout.OP_FORMAT, number + 1, 1, 4, *[0] * 13, b"Send", b"ncclInt8")
        put(path, layout.OPS_AT + number % layout.OPS * layout.OP_BYTES, row)
    trace = reader.read(path, 3)
    assert trace is not None
    assert [op.number for op in trace.ops] == [layout.OPS - 1, layout.OPS, layout.OPS + 1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spots=st.lists(st.tuples(ANYWHERE, st.binary(min_size=1, max_size=400)), max_size=20),
    cells=st.lists(st.tuples(st.integers(2, layout.HEADER_CELLS - 1), NUMBERS), max_size=12),
    rows=st.lists(st.tuples(st.integers(0, 40), st.lists(NUMBERS, min_size=20, max_size=20)), max_size=20),
    size=st.one_of(st.just(layout.FILE_BYTES), ANYWHERE),
)
def test_garbage(
    path: str,
    spots: list[tuple[int, bytes]],
    cells: list[tuple[int, int]],
    rows: list[tuple[int, list[int]]],
    size: int,
) -> None:
    layout.create(path)
    for number, value in cells:
        put(path, 8 * number, layout.cell(value))
    for index, values in rows:
        for at, width in ((layout.COMMS_AT, 128), (layout.FLOWS_AT, 192), (layout.OPS_AT, 160)):
            put(path, at + index * width, struct.pack("=20Q", *values)[:width])
            put(path, at + index * width, layout.cell(values[0] if width == 192 else index + (width == 160)))
    for at, content in spots:
        put(path, at, content)
    os.truncate(path, size)
    trace = reader.read(path)
    if trace is None:
        return
    assert len(trace.communicators) <= layout.COMMS
    assert len(trace.flows) <= layout.FLOWS
    assert len(trace.ops) <= layout.OPS
    for flow in trace.flows:
        assert flow.posted >= flow.gpu_ready >= flow.transmitted >= flow.done >= 0
        assert flow.open_ops >= 0


def test_a_name_is_fit_to_be_shown_on_a_terminal(path: str) -> None:
    row = struct.pack(layout.COMM_FORMAT, 1, 7, 2, 0, 1, 5, 0, 0, b"\x1b[31mtp\n\x07\xff\xc3\xa4")
    put(path, layout.COMMS_AT + layout.COMM_BYTES, row)
    put(path, layout.COMMS_CELL * 8, layout.cell(1))
    put(path, layout.API_CELL * 8, layout.cell(6))
    trace = reader.read(path)
    assert trace is not None
    assert [comm.name for comm in trace.communicators] == ["\ufffd[31mtp\ufffd\ufffd\ufffd\u00e4"]
