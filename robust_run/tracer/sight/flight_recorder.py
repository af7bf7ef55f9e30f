"""Asks a rank's flight recorder what collectives it knows, through the worker server of torch on a unix socket.

The server runs in C++ threads, so it answers while Python is stuck, and the recorder knows collectives that C++ started (the
buckets of DistributedDataParallel). There are two recorders, one of gloo and one of NCCL, with an address each. On gloo `state`
never changes and only `retired` tells that a collective is done; sends and receives are not recorded. On NCCL the GPU is asked
when the recorder is: scheduled, started, completed; but a start is seen only where torch times collectives
(TORCH_NCCL_ENABLE_TIMING), else what is not completed stays scheduled. All numbers may come as strings. The server dumps
everything that it holds: some milliseconds; where the driver of the GPU is stuck, NCCL's does not answer at all.

Read from torch 2.13 (`FlightRecorder.hpp`, `FlightRecorderDetail.hpp`, `distributed/debug/_debug_handlers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.tracer.flight.asking import Question
from robust_run.tracer.flight.status import parse_names, parse_status
from robust_run.tracer.flight.types import GroupClock, GroupName
from robust_run.tracer.types import Op

SOCKET_SUFFIX = ".sock"
TIMEOUT_S = 1.0
#: Of regular looks, for which nobody waits.
PATIENT_S = 5.0
ANSWER_BYTES = 8 * 1024 * 1024
#: So many of the newest are taken.
COLLECTIVES = 128
WORD_CHARACTERS = 100
LARGEST = 1 << 62

#: What torch calls the two recorders: of gloo (and other CPU back ends), and of NCCL, which CPU builds of torch do not know.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")

#: What is asked regularly. gloo's recorder takes no parameters, and tells all.
_QUESTIONS: dict[Question, str] = {
    "nccl": f"{HANDLERS[1]}?includecollectives=false",
    "nccl_whole": HANDLERS[1],
    "gloo_whole": HANDLERS[0],
}

_REQUEST = "POST /handler/{} HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
    "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool",
}  # fmt: skip
#: Endings that say how tensors are laid out, not what is done.
_LAYOUTS = ("_base", "_single", "_coalesced", "_into_tensor", "_tensor")


class NoRecorderError(ValueError):
    """The server does not know this recorder, or not what it was asked."""


class _Entry(msgspec.Struct):
    process_group: list[str] = []
    collective_seq_id: int = 0
    is_p2p: bool = False
    profiling_name: str = ""
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    time_created_ns: int = 0
    time_discovered_started_ns: int | None = None
    state: str = ""
    retired: bool = False


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []


async def recorded(steps_file: str, monotonic_s: Callable[[], float], unix_s: Callable[[], float]) -> tuple[Op, ...]:
    """Return the newest collectives that the rank with this steps file knows of, oldest first; none without an answer."""
    path = f"{steps_file}{SOCKET_SUFFIX}"
    answers = await asyncio.gather(*(_answer(path, handler) for handler in HANDLERS))
    ahead_s = unix_s() - monotonic_s()
    return merged(*(parse_recorded(content, ahead_s) for content in answers))


async def counted(steps_file: str, question: Question) -> tuple[tuple[GroupClock, ...], tuple[GroupName, ...]]:
    """Return how far a rank is in each group that a recorder knows, and names of groups where all was asked for.

    Raises OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError; NoRecorderError: it will never answer that.
    """
    content = await asyncio.wait_for(_ask(f"{steps_file}{SOCKET_SUFFIX}", _QUESTIONS[question]), PATIENT_S)
    on_nccl = question != "gloo_whole"
    clocks = parse_status(content, on_nccl=on_nccl)
    if clocks is None:
        raise ValueError("the recorder's answer makes no sense")
    return clocks, () if question == "nccl" else parse_names(content, on_nccl=on_nccl)


async def _answer(path: str, handler: str) -> bytes:
    """Return what one recorder says; nothing without an answer."""
    try:
        return await asyncio.wait_for(_ask(path, handler), TIMEOUT_S)
    except (OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        return b""


def merged(gloo: tuple[Op, ...], nccl: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return what both recorders know, oldest first. A group that uses both counts twice: then NCCL's counts are taken."""
    on_nccl = {op.group for op in nccl}
    return tuple(sorted((*(op for op in gloo if op.group not in on_nccl), *nccl), key=lambda op: op.at_s))


def parse_recorded(content: bytes, ahead_s: float) -> tuple[Op, ...]:
    """Return the collectives of a recorder's JSON. `ahead_s`: by how much wall time is ahead of ours. Never raises."""
    try:
        dump = json_decoder(_Dump, strict=False).decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
    timed = any(entry.time_discovered_started_ns for entry in dump.entries)
    entries = [entry for entry in dump.entries if not entry.is_p2p and entry.process_group]
    return tuple(_op(entry, ahead_s, timed) for entry in entries[-COLLECTIVES:])


def _op(entry: _Entry, ahead_s: float, timed: bool) -> Op:
    """Return an entry in our words. `timed`: starts are seen where there are any."""
    numel = 0
    for sizes in entry.input_sizes:
        product = 1
        for size in sizes:
            product = min(product * max(size, 0), LARGEST)
        numel += product
    done = entry.retired or entry.state == "completed"
    return Op(
        group=entry.process_group[0][:WORD_CHARACTERS],
        op=_operation(entry.profiling_name)[:WORD_CHARACTERS],
        seq=entry.collective_seq_id,
        state="done" if done else "waiting",
        at_s=entry.time_created_ns / 1e9 - ahead_s,
        numel=min(numel, LARGEST),
        dtype=_TYPES.get(entry.input_dtypes[0], entry.input_dtypes[0][:WORD_CHARACTERS]) if entry.input_dtypes else "",
        on_gpu=_on_gpu(entry, timed),
    )


def _on_gpu(entry: _Entry, timed: bool) -> bool | None:
    """Return whether an operation of NCCL has begun on the GPU; None: not known, or none of NCCL."""
    if not entry.profiling_name.startswith("nccl:"):
        return None
    if entry.state in ("started", "completed"):
        return True
    return False if timed else None


def _operation(name: str) -> str:
    """Return our name of an operation: `nccl:_all_gather_base` is `all_gather`."""
    plain = name.rpartition(":")[2].lower().lstrip("_")
    for layout in _LAYOUTS:
        plain = plain.removesuffix(layout)
    return {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}.get(plain, plain)


async def _ask(path: str, handler: str) -> bytes:
    """Return the body of the server's answer. Raises OSError, ValueError, asyncio.IncompleteReadError."""
    reader, writer = await asyncio.open_unix_connection(path, limit=64 * 1024)
    try:
        writer.write(_REQUEST.format(handler).encode())
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        if " 404" in head[0] or " 400" in head[0]:
            raise NoRecorderError(f"the worker server says {head[0][:80]}")
        if " 200" not in head[0]:
            raise ValueError(f"the worker server says {head[0][:80]}")
        lengths = [line.partition(":")[2].strip() for line in head if line.lower().startswith("content-length:")]
        length = int(lengths[0]) if lengths else -1
        if not 0 <= length <= ANSWER_BYTES:
            raise ValueError(f"an answer of {length} bytes; at most {ANSWER_BYTES} are read")
        return await reader.readexactly(length)
    except asyncio.LimitOverrunError as error:
        raise ValueError("the worker server's head does not end") from error
    finally:
        writer.close()
