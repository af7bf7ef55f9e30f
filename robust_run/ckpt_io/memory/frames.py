"""Messages as bytes on a stream socket, and back. Pure."""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.memory.protocol import HEADER_BYTES, LARGEST_FRAME_BYTES

_encoder = msgspec.msgpack.Encoder()


class FrameRefused(Exception):  # noqa: N818 - never leaves this package
    """What came is no message of ours."""


def frame(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def take(buffer: bytearray) -> bytes | None:
    """Take the first message out of what has come so far; None: it has not come whole.

    Raises:
        FrameRefused: It is longer than any of ours.
    """
    if len(buffer) < HEADER_BYTES:
        return None
    size_bytes = int.from_bytes(buffer[:HEADER_BYTES], "big")
    if size_bytes > LARGEST_FRAME_BYTES:
        raise FrameRefused(f"a message of {size_bytes} bytes; at most {LARGEST_FRAME_BYTES} are read")
    end = HEADER_BYTES + size_bytes
    if len(buffer) < end:
        return None
    body = bytes(buffer[HEADER_BYTES:end])
    del buffer[:end]
    return body
