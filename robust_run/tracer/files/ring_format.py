"""The layout of the ring file: what one rank said to its peers last, readable from outside at any moment and after its death.

One file of half a mebibyte, mostly holes until it is used, for each worker of an attempt. The launcher creates it beside
the steps file, the recorder in the worker maps it and writes (`robust_run/tracer/arm/recorder.py`), agents read it
(`robust_run.tracer.files.ring`). Numbers are in the machine's byte order,
times are nanoseconds of the monotonic clock. Four regions:

    header   cells of eight bytes, each written at once: `*_CELL`; from byte 128 on what `files.data_waits` says, from
             1024 on what `files.clocks` does
    slots    one of 64 bytes for each communication call, number i in slot i mod 4096, changed in place as it goes on:
             t_enter t_wait t_done numel(q) seq(I) site(I) peer(i) group(H) thread(H) op(B) state(B) dtype(B) pad tag(i)
             index+1(Q)
    marks    the ends of the newest steps: t, blocked time of the main thread by then
    table    lines that are only added: `g index name desc ranks`, `s index file:line function` and, of a group,
             `t index milliseconds` (torch's time limit of its calls; the last one counts), separated by tabs

The writer clears a slot, fills it and writes index+1 last, so what carries the right number was whole; a reader looks at it
before and after. Nothing here trusts the writer: it may be any program, killed at any instruction.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from robust_run.tracer.types import WENT_ON, OpState

MAGIC = b"RBRING\n\0"
VERSION = 1
HEADER_BYTES = 4096
SLOTS = 4096
SLOT_BYTES = 64
SLOT_FORMAT = "=QQQqIIiHHBBBBiQ"
MARKS = 1024
MARK_BYTES = 16
TABLE_BYTES = 1 << 18
SLOTS_AT = HEADER_BYTES
MARKS_AT = SLOTS_AT + SLOTS * SLOT_BYTES
TABLE_AT = MARKS_AT + MARKS * MARK_BYTES
FILE_BYTES = TABLE_AT + TABLE_BYTES

(
    MAGIC_CELL,
    VERSION_CELL,
    PID_CELL,  # 0 until a process records something
    RANK_CELL,
    WORLD_CELL,
    HEAD_CELL,  # calls begun
    STEPS_CELL,
    LAST_EVENT_CELL,  # time of the newest change of any kind
    BLOCKED_CELL,  # of the main thread, all waits that ended
    WAITING_SINCE_CELL,  # start of the oldest wait that goes on in any thread; 0: none
    WAITING_INDEX_CELL,  # of the call it waits for, + 1; 0: of an unrecorded one
    TABLE_BYTES_CELL,
    STATE_CELL,  # UNARMED, ARMED or GIVEN_UP
    DOUBT_CELL,  # bits of DOUBTS: why what the calls look like proves nothing
    TABLE_GENERATION_CELL,  # goes up before the table is made anew, and after: while it is odd the table makes no sense
) = range(15)
HEADER_CELLS = 15
UNARMED, ARMED, GIVEN_UP = range(3)
FOREIGN, LIMITED, SURVIVED, REBORN, FORKED, SERVING = 1, 2, 4, 8, 16, 32
#: What the bits of the doubt cell mean, as clauses whose subject is a rank.
DOUBTS = {
    FOREIGN: "has another number or a smaller world in torch than robust-run gave it",
    LIMITED: "gave a call a time limit of its own",
    SURVIVED: WENT_ON,
    REBORN: "ended its process groups and made them anew",
    FORKED: "has a forked child that communicates",
    SERVING: "does what others ask of it by RPC",
}

#: What the slots' codes mean; 0 is unknown. The recorder has the same tables: a test keeps the two equal.
OPS = (
    "",
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "recv_any",
    "init_process_group",
    "new_group",
    "destroy_process_group",
    "ddp_backward",
    "monitored_barrier",
)
STATES: tuple[OpState, ...] = ("entered", "issued", "waiting", "done", "failed")
DTYPES = (
    "",
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)

#: A real-time signal on which a worker writes its stacks into `<steps file>.stacks`.
STACKS_SIGNAL_BELOW_MAX = 3
RING_SUFFIX = ".ring"
STACKS_SUFFIX = ".stacks"
SOCKET_SUFFIX = ".sock"


def stacks_signal() -> int:
    """Return the number of the signal that asks a worker for its stacks."""
    import signal

    return int(signal.SIGRTMAX) - STACKS_SIGNAL_BELOW_MAX


def cell(value: int) -> bytes:
    """Return a number as it stands in a cell."""
    return value.to_bytes(8, sys.byteorder)


def create(path: str, rank: int, world_size: int) -> None:
    """Make the ring file of a rank, which no process has claimed yet, in place of what was there. Raises OSError.

    A process that still maps the old file keeps that one: a file that shrinks would kill it.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Every page is there from the start: a worker that touches one which a full /dev/shm cannot give dies of SIGBUS.
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.pwrite(descriptor, MAGIC + cell(VERSION) + cell(0) + cell(rank) + cell(world_size), 0)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
