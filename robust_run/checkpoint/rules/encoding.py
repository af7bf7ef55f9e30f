"""What is kept beside tensors, as bytes and back. Data only: nothing in it can run."""

from __future__ import annotations

from typing import Any

import msgspec

from robust_run.checkpoint.rules.tree import Packer, kind_of, pairs, unpack
from robust_run.checkpoint.types import SCHEMA, Values
from robust_run.ckpt_io.errors import CheckpointError

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Values)


def encode(values: Values) -> bytes:
    """Return the values as bytes."""
    return _ENCODER.encode(values)


def decode(data: bytes | memoryview, where: str) -> Values:
    """Return the values. Raises CheckpointError: they are none."""
    try:
        values = _DECODER.decode(data)
        if values.schema != SCHEMA:
            raise ValueError(f"schema {values.schema}, this version reads {SCHEMA}")
        unpack(values.tree, lambda number: values.tensors[number].name)
        if kind_of(values.tree) != "d":
            raise ValueError("a state is no dict")
        list(pairs(values.tree))
    except (msgspec.MsgspecError, ValueError, IndexError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{where}: its values cannot be read: {error}") from error
    return values


def pack_plain(value: Any) -> Any:
    """Return the node of plain values of our own."""
    return Packer(lambda *_: None).pack(value, ())


def unpack_plain(node: Any) -> Any:
    """Return plain values of our own."""
    return unpack(node, lambda _: None)
