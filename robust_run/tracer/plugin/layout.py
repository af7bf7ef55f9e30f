"""The layout of the file that the plugin inside NCCL writes: one for each rank, made by the launcher, 4.3 MiB.

All of it is numbers of eight bytes (cells) in the machine's byte order, each written whole; times are nanoseconds of the
monotonic clock of the node, 0 is never. The truth is the structures at the top of `plugin.c`; a test compares the two. Regions:

    header   `HEADER_CELLS`, of each row of comms the number of a thread, and space up to 4096 bytes
    comms    256 communicators: number n is in row n mod 256
    flows    rows in the order of their first use, `FLOWS_CELL` of them; a row stays where it is
    ops      a ring: operation n is in row n mod 8192, and its first cell is n + 1 while the row is whole

The plugin does nothing with a file of another size or version, or one that another process already claimed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NamedTuple

#: What the file is called, beside the other files of its rank.
SUFFIX = ".nccl"
#: Names the file to the plugin. Without it the plugin does nothing.
PATH_VARIABLE = "ROBUST_NCCL_TRACE"
#: `1`: NCCL tells of the kernels of each channel, too. Costs time with small messages.
KERNELS_VARIABLE = "ROBUST_NCCL_TRACE_KERNELS"

MAGIC = b"RBNCCL\n\0"
VERSION = 1
HEADER_BYTES = 4096
COMMS = 256
COMM_BYTES = 128
FLOWS = 16384
FLOW_BYTES = 192
OPS = 8192
OP_BYTES = 160
COMMS_AT = HEADER_BYTES
FLOWS_AT = COMMS_AT + COMMS * COMM_BYTES
OPS_AT = FLOWS_AT + FLOWS * FLOW_BYTES
FILE_BYTES = OPS_AT + OPS * OP_BYTES

(
    MAGIC_CELL,
    VERSION_CELL,
    PID_CELL,  # of the process that writes, as it sees itself; 0: none yet
    API_CELL,  # version of NCCL's interface in use: 3 to 6; 0: NCCL made no communicator yet
    MASK_CELL,  # kinds of events asked for
    STARTED_CELL,
    COMMS_CELL,  # communicators made so far
    FLOWS_CELL,  # rows of flows in use; more than `FLOWS`: that many found no room
    OPS_CELL,  # operations begun
    EVENT_CELL,  # time of the newest event
    DROPPED_CELL,  # events that found no room
    FOREIGN_CELL,  # proxy operations done for a process beside
    UNKNOWN_CELL,  # events and states of no known kind
    STALE_CELL,  # handles that fit nothing: late, doubled or garbage
    BUSY_CELL,  # for how long proxy threads had work
    RAN_CELL,  # for how long of that they ran on a CPU
) = range(16)
HEADER_CELLS = 16
#: Of each communicator the proxy thread that works for it, as the process sees it; 0: none yet.
THREADS_AT = HEADER_CELLS * 8
THREADS_FORMAT = f"={COMMS}Q"

COMM_FORMAT = "=8Q64s"
(SERIAL, HASH, RANKS, RANK, NODES, COMM_OPENED, COMM_CLOSED, P2PS, NAME) = range(9)

FLOW_FORMAT = "=24Q"
(KEY, ORIGIN, FLOW_OP, FLOW_SEQ, OP_AT, OP_BASE, OP_STEPS, STEPS) = range(8)
LEVELS = slice(8, 12)
LEVEL_TIMES = slice(12, 16)
(FLOW_BYTES_MOVED, FLOW_OPENED, FLOW_CLOSED) = range(16, 19)
#: Where steps spent their time, between two rungs each; for how long any was between the last two; until when that is counted.
SPENT = slice(19, 22)
(FLOW_WORKING, FLOW_WEIGHED) = range(22, 24)

#: A flow's key: in use, foreign, number of the communicator (or pid), channel, peer, direction.
KEY_USED = 1 << 63
KEY_FOREIGN = 1 << 62
KEY_COMM_SHIFT, KEY_CHANNEL_SHIFT, KEY_PEER_SHIFT = 34, 26, 2
KEY_COMM_MASK, KEY_CHANNEL_MASK, KEY_PEER_MASK = 0xFFFFFF, 0xFF, 0xFFFFFF
KEY_SENDS = 1

PEER_BITS = 24

OP_FORMAT = "=5Qq10Q16s16s"
(
    NUMBER,
    OP_COMM,
    KIND,
    SEQ,
    COUNT,
    PEER,
    STARTED,
    STOPPED,
    PROXY_FIRST,
    PROXY_LAST,
    SENT,
    RECEIVED,
    OPENED,
    CLOSED,
    KERNEL_FIRST,
    KERNEL_LAST,
    FUNC,
    TYPE,
) = range(18)
COLLECTIVE_KIND, P2P_KIND = 2, 4
#: The lowest byte of `KIND` is one of these; the next says how a collective is carried out: 0 unknown, 1 ring, 2 tree, 3 other.
KIND_MASK, ALGORITHM_SHIFT = 0xFF, 8


class FlowKey(NamedTuple):
    """What a flow's key says."""

    comm: int
    foreign: bool
    channel: int
    peer: int
    sends: bool


def flow_key(key: int) -> FlowKey:
    """Return the parts of a flow's key."""
    peer = key >> KEY_PEER_SHIFT & KEY_PEER_MASK
    return FlowKey(
        comm=key >> KEY_COMM_SHIFT & KEY_COMM_MASK,
        foreign=bool(key & KEY_FOREIGN),
        channel=key >> KEY_CHANNEL_SHIFT & KEY_CHANNEL_MASK,
        peer=peer - (1 << PEER_BITS) if peer >> (PEER_BITS - 1) else peer,
        sends=bool(key & KEY_SENDS),
    )


def cell(value: int) -> bytes:
    """Return a number as it stands in a cell."""
    return value.to_bytes(8, sys.byteorder)


def create(path: str) -> None:
    """Make an empty file in place of what was there. Raises OSError.

    It takes no space yet: the plugin reserves that before it writes, and does nothing where there is none. A process that still
    maps the old file keeps that one.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, FILE_BYTES)
        os.pwrite(descriptor, MAGIC + cell(VERSION), 0)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
