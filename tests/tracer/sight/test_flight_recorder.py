"""What torch's flight recorder says is read over its worker server, in the forms of gloo and NCCL, and any broken one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks_alone import PATIENCE_S

from robust_run.tracer.sight import flight_recorder
from robust_run.tracer.sight.flight_recorder import COLLECTIVES, merged, parse_recorded, recorded
from robust_run.tracer.types import Op


def entry(**fields: Any) -> dict[str, Any]:
    """An entry as torch 2.13 writes it for gloo."""
    return {
        "collective_seq_id": 1,
        "input_dtypes": ["Float"],
        "input_sizes": [[4, 3], [2]],
        "is_p2p": False,
        "op_id": 1,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "retired": True,
        "state": "scheduled",
        "thread_id": "140293114915712",
        "time_created_ns": 1_795_277_152_500_000_000,
        "time_discovered_completed_ns": 0,
    } | fields


def parsed(*entries: dict[str, Any]) -> tuple[Op, ...]:
    return parse_recorded(json.dumps({"version": "2.10", "entries": entries}).encode(), 1_795_277_000.0)


def test_a_collective_is_told_in_our_words():
    (op,) = parsed(entry())
    assert (op.group, op.op, op.seq, op.state, op.numel, op.dtype) == ("0", "all_reduce", 1, "done", 14, "float32")
    assert op.at_s == pytest.approx(152.5)


def test_what_is_not_retired_is_waited_for_unless_its_events_completed():
    states = [op.state for op in parsed(entry(retired=False), entry(retired=False, state="completed"))]
    assert states == ["waiting", "done"]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("gloo:barrier", "barrier"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_reduce_coalesced", "all_reduce"),
        ("nccl:ALLREDUCE", "all_reduce"),
        ("nccl:all_to_all", "all_to_all"),
        ("", ""),
    ],
)
def test_operations_have_our_names(name: str, op: str):
    assert parsed(entry(profiling_name=name))[0].op == op


def test_sends_and_receives_are_left_to_the_ring():
    assert parsed(entry(is_p2p=True, profiling_name="nccl:send 0->1")) == ()


def test_numbers_may_be_strings_and_a_barrier_has_no_tensors():
    (op,) = parsed(entry(collective_seq_id="7", input_sizes=[], input_dtypes=[]))
    assert (op.seq, op.numel, op.dtype) == (7, 0, "")


def test_only_the_newest_are_kept_oldest_first():
    found = parsed(*(entry(collective_seq_id=number) for number in range(2000)))
    assert [op.seq for op in found] == list(range(2000 - COLLECTIVES, 2000))


KEYS = st.sampled_from(list(entry()))
JSON = st.recursive(st.integers() | st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))


@given(st.text() | JSON)
def test_garbage_gives_nothing_or_operations(value: Any):
    for content in (
        str(value).encode(errors="replace"),
        json.dumps({"entries": [entry(), value]}).encode(errors="replace"),
    ):
        assert all(isinstance(op, Op) for op in parse_recorded(content, 0.0))


def nccl(state: str, seq: int, *, started_ns: int = 0, retired: bool = False, **fields: Any) -> dict[str, Any]:
    """An entry as torch 2.13 writes it for NCCL."""
    return {
        "collective_seq_id": seq,
        "duration_ms": 1.5 if retired else None,
        "input_dtypes": ["BFloat16"],
        "input_sizes": [[1024]],
        "is_p2p": False,
        "op_id": seq,
        "output_dtypes": ["BFloat16"],
        "output_sizes": [[8192]],
        "p2p_seq_id": 0,
        "pg_id": 3,
        "process_group": ["5", "dp_1"],
        "profiling_name": "nccl:_all_gather_base",
        "record_id": 40 + seq,
        "retired": retired,
        "state": state,
        "thread_id": "140293114915712",
        "thread_name": "pt_autograd_0",
        "time_created_ns": 1_795_277_150_000_000_000 + seq,
        "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": started_ns,
        "timeout_ms": 600000,
    } | fields


STARTED_NS = 1_795_277_150_100_000_000


def test_of_nccl_it_is_told_what_has_begun_on_the_gpu():
    found = parsed(
        nccl("completed", 6, started_ns=STARTED_NS, retired=True),
        nccl("started", 7, started_ns=STARTED_NS),
        nccl("scheduled", 8),
    )
    assert [(op.group, op.op, op.seq, op.state, op.on_gpu) for op in found] == [
        ("5", "all_gather", 6, "done", True),
        ("5", "all_gather", 7, "waiting", True),
        ("5", "all_gather", 8, "waiting", False),
    ]
    assert (found[0].numel, found[0].dtype) == (1024, "bfloat16")


def test_where_torch_times_no_collectives_nothing_is_said_of_their_start():
    found = parsed(nccl("completed", 6, retired=True), nccl("scheduled", 7), nccl("scheduled", 8))
    assert [op.on_gpu for op in found] == [True, None, None]


def test_of_gloo_nothing_is_said_of_a_gpu():
    assert parsed(entry(), entry(time_discovered_started_ns=STARTED_NS))[0].on_gpu is None


def test_a_dump_in_which_starts_are_null_is_read():
    assert parsed(nccl("scheduled", 8, time_discovered_started_ns=None))[0].on_gpu is None


def test_both_recorders_are_heard_and_of_a_group_that_uses_both_only_nccls():
    gloo = parsed(entry(collective_seq_id=1), entry(collective_seq_id=90, process_group=["5", "dp_1"]))
    on_nccl = parsed(nccl("completed", 6, retired=True))
    assert [(op.group, op.seq) for op in merged(gloo, on_nccl)] == [("5", 6), ("0", 1)]


def asked(folder: Path, answer: bytes | None, nccls: bytes = b"") -> tuple[Op, ...]:
    """What comes of a server that gives this answer; None: it never answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if b"/handler/dump_nccl_trace_json " in await reader.readuntil(b"\r\n\r\n"):
                writer.write(nccls or b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            elif answer is None:
                await reader.read()  # until the other side gives up
            else:
                writer.write(answer)
        finally:
            writer.close()

    async def ask() -> tuple[Op, ...]:
        async with await asyncio.start_unix_server(serve, str(folder / "s.sock")):
            return await recorded(str(folder / "s"), lambda: 5.0, lambda: 1_795_277_005.0)

    return asyncio.run(ask())


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is waited for, however busy this machine is."""
    monkeypatch.setattr(flight_recorder, "TIMEOUT_S", float(PATIENCE_S))


@pytest.mark.usefixtures("patience")
def test_the_server_is_asked_over_its_socket(tmp_path: Path):
    body = json.dumps({"entries": [entry()]}).encode()
    (op,) = asked(tmp_path, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert op.at_s == pytest.approx(152.5)


@pytest.mark.usefixtures("patience")
def test_nccls_recorder_is_asked_besides_even_if_gloos_says_nothing(tmp_path: Path):
    body = json.dumps({"entries": [nccl("scheduled", 8)]}).encode()
    (op,) = asked(tmp_path, b"", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert (op.group, op.seq, op.state) == ("5", 8, "waiting")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"x" * 200_000,
    ],
)
def test_a_server_that_answers_anything_else_gives_nothing(tmp_path: Path, answer: bytes | None):
    assert asked(tmp_path, answer) == ()


def test_no_server_gives_nothing(tmp_path: Path):
    def ask(steps_file: str) -> tuple[Op, ...]:
        return asyncio.run(recorded(steps_file, lambda: 0.0, lambda: 0.0))

    assert ask(str(tmp_path / "none")) == ()
    assert ask("/" + "long" * 100) == ()
    assert ask("nul\0") == ()


RANK = """
import sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer
store = dist.FileStore(sys.argv[1] + ".store", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
server = _WorkerServer(sys.argv[1] + ".sock", -1)
dist.all_reduce(torch.ones(5))
dist.barrier()
print("ready", flush=True)
sys.stdin.read()
server.shutdown()
"""


@pytest.mark.usefixtures("patience")
def test_torch_itself_answers(tmp_path: Path):
    steps_file = str(tmp_path / "steps")
    running = subprocess.Popen(
        [sys.executable, "-c", RANK, steps_file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
    )
    try:
        if running.stdout.readline() != "ready\n":
            pytest.skip("this torch has no worker server for us")
        found = asyncio.run(recorded(steps_file, lambda: 0.0, lambda: 0.0))
    finally:
        running.kill()
        running.communicate(timeout=PATIENCE_S)
    assert [(op.group, op.op, op.seq, op.state, op.numel) for op in found] == [
        ("0", "all_reduce", 1, "done", 5),
        ("0", "barrier", 2, "done", 0),
    ]
