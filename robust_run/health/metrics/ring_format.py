"""The report file: what a worker writes with `robust_run.report` and the sensors read.

A worker creates it with its first report, and maps it; each attempt has a folder of them. All in the machine's byte order:

    header, 64 bytes    magic   version, slots (32 bits each)   pid of the writer; 0: not written yet
    slots, 512 bytes    sequence   CRC-32 of all after it   number of values   unix time   monotonic time   step
                        then 14 values: name (24 bytes of UTF-8, padded with zeros), number

Sequence n lies in slot (n - 1) modulo slots. A slot that is being written fails its CRC, so readers need no lock.
"""

from __future__ import annotations

import struct

MAGIC = b"RBREPRT\n"
VERSION = 1
HEADER = struct.Struct("=8sIIQ")
HEADER_BYTES = 64
SLOTS = 64
SLOT_BYTES = 512
HEAD = struct.Struct("=QII")
"""Sequence, CRC, number of values."""
TIMES = struct.Struct("=ddq")
"""Unix time, monotonic time, step (minus one: not said)."""
VALUE = struct.Struct("=24sd")
MOST_VALUES = 14
NAME_BYTES = 24
BODY_AT = HEAD.size
VALUES_AT = HEAD.size + TIMES.size
FILE_BYTES = HEADER_BYTES + SLOTS * SLOT_BYTES
NO_STEP = -1

assert VALUES_AT + MOST_VALUES * VALUE.size <= SLOT_BYTES
