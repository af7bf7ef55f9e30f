"""The bytes between an attention member and an expert member: both must have the job's key. No sockets.

    attention   32 bytes, a nonce
    expert      32 bytes, its own
    both        frames: 4 bytes of length | msgpack | 16 bytes of seal, the first one a Greeting

A seal is an HMAC over the frame's number, its length and its payload, with a key that comes of the job's, both nonces and the
direction. So a frame that somebody else made, changed, repeated, left out, or took from another connection is none. Bytes are
not hidden.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator

import msgspec
from words import Greeting, Made, Work

NONCE_BYTES, HEADER_BYTES, SEAL_BYTES = 32, 4, 16
MOST_BYTES, MOST_FIRST_BYTES = 1 << 20, 256
"""Largest payload; of the first frame, which may be a stranger's."""
PURPOSE = "examples/serving: rows between attention and experts"
"""What `robust_run.roles.peer_key` is asked for."""

_decoder = msgspec.msgpack.Decoder(Greeting | Work | Made)
_encoder = msgspec.msgpack.Encoder()


class WireError(Exception):
    """What arrived is no frame of the other end. The connection is of no use any more."""


class Frames:
    """Both directions of one connection after the nonces. `nonces`: the attention member's, then the expert's."""

    def __init__(self, key: bytes, nonces: bytes, *, is_expert: bool) -> None:
        keys = [hmac.digest(key, direction + nonces, "sha256") for direction in (b"to expert", b"to attention")]
        self._key_in, self._key_out = keys if is_expert else reversed(keys)
        self._sent = self._received = 0
        self._data = bytearray()

    def frame(self, message: Greeting | Work | Made) -> bytes:
        """Return what goes on the wire. Raises WireError where it is too large."""
        payload = _encoder.encode(message)
        if len(payload) > MOST_BYTES:
            raise WireError(f"a message of {len(payload)} bytes is larger than a frame can be ({MOST_BYTES})")
        frame = len(payload).to_bytes(HEADER_BYTES, "big") + payload
        self._sent += 1
        return frame + _seal(self._key_out, self._sent, frame)

    def feed(self, data: bytes) -> Iterator[Greeting | Work | Made]:
        """Take in what was received, and yield messages that are whole. Raises WireError for what is none."""
        self._data += data
        while len(self._data) >= HEADER_BYTES:
            size = int.from_bytes(self._data[:HEADER_BYTES], "big")
            limit = MOST_BYTES if self._received else MOST_FIRST_BYTES
            if size > limit:
                raise WireError(f"a frame of {size} bytes, more than the {limit} allowed here")
            end = HEADER_BYTES + size
            if len(self._data) < end + SEAL_BYTES:
                return
            frame, seal = bytes(self._data[:end]), bytes(self._data[end : end + SEAL_BYTES])
            del self._data[: end + SEAL_BYTES]
            if not hmac.compare_digest(seal, _seal(self._key_in, self._received + 1, frame)):
                raise WireError("a frame that the other end did not send here and now, or one of another job")
            yield self._message(frame[HEADER_BYTES:])

    def _message(self, payload: bytes) -> Greeting | Work | Made:
        self._received += 1
        try:
            message: Greeting | Work | Made = _decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"no message ({error})") from None
        if isinstance(message, Greeting) != (self._received == 1):
            raise WireError(f"frame {self._received} is a {type(message).__name__}")
        return message


def _seal(key: bytes, number: int, frame: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + frame, "sha256")[:SEAL_BYTES]
