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

from robust_run.tracer.sight.flight_recorder import COLLECTIVES, parse_recorded, recorded
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


def asked(folder: Path, answer: bytes | None) -> tuple[Op, ...]:
    """What comes of a server that gives this answer; None: it never answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()  # until the other side gives up
        else:
            writer.write(answer)
        writer.close()

    async def ask() -> tuple[Op, ...]:
        async with await asyncio.start_unix_server(serve, str(folder / "s.sock")):
            return await recorded(str(folder / "s"), lambda: 5.0, lambda: 1_795_277_005.0)

    return asyncio.run(ask())


def test_the_server_is_asked_over_its_socket(tmp_path: Path):
    body = json.dumps({"entries": [entry()]}).encode()
    (op,) = asked(tmp_path, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert op.at_s == pytest.approx(152.5)


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
