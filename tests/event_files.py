"""Writes event files as TensorBoard and wandb do, with no more than Python: tests have neither."""

from __future__ import annotations

import json
import struct

from robust_run.health.metrics import wandb_files
from robust_run.health.metrics.tensorboard import masked_crc


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def piece(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def scalar(tag: str, step: int, value: float, at_s: float | None = None) -> bytes:
    """An Event of TensorFlow with one scalar; `at_s`: when, in unix seconds."""
    summary = piece(1, piece(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
    return (
        b"\x09"
        + struct.pack("<d", 1000.0 + step if at_s is None else at_s)
        + b"\x10"
        + varint(step)
        + piece(5, summary)
    )


def tensor(tag: str, step: int, value: float) -> bytes:
    """The same as TensorFlow 2 writes it."""
    inner = b"\x08\x01" + piece(4, struct.pack("<f", value))
    return b"\x10" + varint(step) + piece(5, piece(1, piece(1, tag.encode()) + piece(8, inner)))


def record(data: bytes) -> bytes:
    """A TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def item(name: str, value: object) -> bytes:
    return piece(1, piece(1, name.encode()) + piece(16, json.dumps(value).encode()))


def history(step: int, **values: object) -> bytes:
    items = b"".join(item(name, value) for name, value in {**values, "_step": step, "_timestamp": 5.0}.items())
    return piece(2, items)


def logged(*records: bytes) -> bytes:
    """A file as wandb writes it: pieces in blocks of 32 KiB."""
    out = b":W&B\xe1\xbe\x00"
    for data in records:
        left, first = data, True
        while left or first:
            room = wandb_files.BLOCK_BYTES - len(out) % wandb_files.BLOCK_BYTES
            if room < 7:
                out += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = (1 if not left else 2) if first else (4 if not left else 3)
            out += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return out
