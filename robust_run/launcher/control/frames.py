"""Framing of control messages: four bytes of length, big-endian, then a msgpack map; after the handshake a seal (`sealing`).

Ten thousand agents talk to one controller on one core, so nothing is copied that need not be, and each process has one
encoder and one decoder a direction.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.messages import FromAgent, FromController
from robust_run.launcher.control.sealing import SEAL_BYTES, Opener

UNPROVEN_FRAME_BYTES = 64 << 10
"""Largest frame of a peer that has not proven that it knows the token."""
LARGEST_FRAME_BYTES = 64 << 20
"""Largest frame at all."""
HEADER_BYTES = 4

_encoder = msgspec.msgpack.Encoder()
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
_from_controller: msgspec.msgpack.Decoder[FromController] = msgspec.msgpack.Decoder(FromController)


def encode(message: FromAgent | FromController) -> bytes:
    """Return a message as a frame. Raises ProtocolError where it is larger than `LARGEST_FRAME_BYTES`."""
    return framed(_encoder.encode(message))


def framed(payload: bytes) -> bytes:
    """Return an encoded message as a frame. Raises ProtocolError where it is larger than `LARGEST_FRAME_BYTES`."""
    if len(payload) > LARGEST_FRAME_BYTES:
        raise ProtocolError(
            f"a message of {len(payload)} bytes is larger than a frame can be ({LARGEST_FRAME_BYTES} bytes)"
        )
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def decode_from_agent(payload: bytes) -> FromAgent:
    """Return what an agent said. Raises ProtocolError for anything else."""
    try:
        return _from_agent.decode(payload)
    except Exception as error:  # whatever hostile bytes can bring about: wrong types, nesting, encodings
        raise _not_a_message(error) from None


def decode_from_controller(payload: bytes) -> FromController:
    """Return what a controller said. Raises ProtocolError for anything else."""
    try:
        return _from_controller.decode(payload)
    except Exception as error:  # see `decode_from_agent`
        raise _not_a_message(error) from None


class FrameReader:
    """Cuts a stream of bytes into payloads; `feed` it and take what `next` has until it has nothing."""

    __slots__ = ("_at", "_data", "_opener", "limit_bytes")

    def __init__(self, limit_bytes: int = UNPROVEN_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        """Largest payload; may be raised between two frames."""
        self._data: bytes | bytearray = b""
        self._at = 0  # everything before has been handed out
        self._opener: Opener | None = None

    def expect_seals(self, opener: Opener) -> None:
        """Hand out only what is sealed from now on: between two frames, once the other end has proven itself."""
        self._opener = opener

    def feed(self, data: bytes) -> None:
        """Append what was received."""
        if self._at == len(self._data):  # nearly always: whole frames arrive, and nothing is copied
            self._data = data
            self._at = 0
            return
        if isinstance(self._data, bytearray):
            del self._data[: self._at]
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[self._at :])
            self._data += data
        self._at = 0

    def only(self, data: bytes) -> bytes | None:
        """Return the payload of what was received, if that is one whole frame and nothing was left of what came before; else
        None: `feed` it. As a heartbeat arrives, nearly always.

        Raises ProtocolError as `next` does.
        """
        opener = self._opener
        if opener is None or self._at != len(self._data):
            return None
        end = len(data) - SEAL_BYTES
        if (
            end < HEADER_BYTES
            or end - HEADER_BYTES != int.from_bytes(data[:HEADER_BYTES], "big")
            or end > self.limit_bytes
        ):
            return None
        opener.check(data[:end], data[end:])
        return data[HEADER_BYTES:end]

    def next(self) -> bytes | None:
        """Return the next payload, None where it has not arrived whole.

        Raises ProtocolError where it is over the limit or, with seals, not what the other end sent.
        """
        data = self._data
        start = self._at + HEADER_BYTES
        if len(data) < start:
            return None
        size = int.from_bytes(data[self._at : start], "big")
        if size > self.limit_bytes:
            raise ProtocolError(f"a frame of {size} bytes, more than the {self.limit_bytes} allowed here")
        end = start + size
        opener = self._opener
        after = end if opener is None else end + SEAL_BYTES
        if len(data) < after:
            return None
        whole = data if isinstance(data, bytes) else memoryview(data)
        if opener is not None:
            opener.check(whole[self._at : end], whole[end:after])
        payload = bytes(whole[start:end])
        del whole  # a buffer with a view does not grow
        self._at = after
        if after == len(data):
            self._data = b""  # a large buffer is not kept for the sake of the next small message
            self._at = 0
        return payload


def _not_a_message(error: Exception) -> ProtocolError:
    return ProtocolError(f"no message of this protocol ({type(error).__name__}: {str(error)[:200]})")
