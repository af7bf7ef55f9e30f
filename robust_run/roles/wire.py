"""How a worker and the orchestrator of its job find out that both know the job's secret, and the frames after that. No sockets.

    worker         Hello(nonce)
    orchestrator   Challenge(nonce, proof)     HMAC-SHA256 over "orchestrator", both nonces
    worker         Proof(proof, who it is)     HMAC-SHA256 over "worker", both nonces, who it is; all proofs over the TLS channel
                                               where there is one, so that nobody can stand in between
                   Holds(items it works on)    sealed, as all that follows
    orchestrator   Welcome, or Refused

A frame is four bytes of length and a msgpack map; those after the proofs end in a seal (`launcher.control.sealing`), each
direction with a key of its own. Bytes are not hidden.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import TypeVar

import msgspec

from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.sealing import SEAL_BYTES, Opener, Sealer
from robust_run.roles.words import (
    MOST_FRAME_BYTES,
    PROTOCOL,
    UNPROVEN_FRAME_BYTES,
    Challenge,
    Hello,
    Me,
    Proof,
)

NONCE_BYTES = 32
HEADER_BYTES = 4
_LABEL = b"robust-run roles 1\0"

_encoder = msgspec.msgpack.Encoder()
Message = TypeVar("Message")


class Frames:
    """One direction's bytes cut into messages, and the other's made of them."""

    def __init__(self, receives: type[Message] | object) -> None:
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._data = bytearray()
        self._opener: Opener | None = None
        self._sealer: Sealer | None = None
        self._limit_bytes = UNPROVEN_FRAME_BYTES

    def trust(self, key_in: bytes, key_out: bytes) -> None:
        """Both ends have proven themselves: frames carry seals from now on."""
        self._opener, self._sealer = Opener(key_in), Sealer(key_out)
        self._limit_bytes = MOST_FRAME_BYTES

    @property
    def is_trusted(self) -> bool:
        """Whether both ends have proven themselves."""
        return self._sealer is not None

    def frame(self, message: msgspec.Struct) -> bytes:
        """Return what goes on the wire. Raises ProtocolError where it is too large."""
        payload = _encoder.encode(message)
        if len(payload) > MOST_FRAME_BYTES:
            raise ProtocolError(f"a message of {len(payload)} bytes is larger than a frame can be ({MOST_FRAME_BYTES})")
        frame = len(payload).to_bytes(HEADER_BYTES, "big") + payload
        return frame if self._sealer is None else frame + self._sealer.seal(frame)

    def feed(self, data: bytes) -> None:
        """Append what was received."""
        self._data += data

    def next(self) -> object | None:
        """Return the next message, None where it has not arrived whole. Raises ProtocolError for what is none."""
        if len(self._data) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._data[:HEADER_BYTES], "big")
        if size > self._limit_bytes:
            raise ProtocolError(f"a frame of {size} bytes, more than the {self._limit_bytes} allowed here")
        end = HEADER_BYTES + size
        after = end + (SEAL_BYTES if self._opener is not None else 0)
        if len(self._data) < after:
            return None
        if self._opener is not None:
            self._opener.check(bytes(self._data[:end]), bytes(self._data[end:after]))
        payload = bytes(self._data[HEADER_BYTES:end])
        del self._data[:after]
        try:
            found: object = self._decoder.decode(payload)
        except Exception as error:  # whatever hostile bytes can bring about
            raise ProtocolError(f"no message of this protocol ({type(error).__name__}: {str(error)[:200]})") from None
        return found


class WorkerHalf:
    """The worker's side of the handshake."""

    def __init__(self, secret: bytes, me: Me, version: str, nonce: bytes | None = None, channel: bytes = b"") -> None:
        """`channel`: what tells this TLS connection from any other; empty where there is none."""
        self.hello = Hello(version=version, nonce=nonce if nonce is not None else os.urandom(NONCE_BYTES))
        self._secret = secret
        self._me = me
        self._channel = hashlib.sha256(channel).digest() if channel else b""

    def answer(self, challenge: Challenge) -> tuple[Proof, bytes, bytes]:
        """Return the proof, and the keys of what comes in and goes out. Raises ProtocolError where the other knows no secret."""
        nonces = self.hello.nonce + challenge.nonce + self._channel
        if len(challenge.nonce) != NONCE_BYTES or not hmac.compare_digest(
            challenge.proof, _proof(self._secret, b"orchestrator", nonces)
        ):
            raise ProtocolError("who answers does not know this job's secret")
        proof = Proof(proof=_proof(self._secret, b"worker", nonces, _encoder.encode(self._me)), me=self._me)
        return proof, *_keys(self._secret, nonces)


class OrchestratorHalf:
    """The orchestrator's side of it."""

    def __init__(self, secret: bytes, nonce: bytes | None = None, channel: bytes = b"") -> None:
        """`channel`: as that of the other half, unless somebody stands in between."""
        self._channel = hashlib.sha256(channel).digest() if channel else b""
        self._secret = secret
        self._nonce = nonce if nonce is not None else os.urandom(NONCE_BYTES)
        self._nonces = b""

    def challenge(self, hello: Hello) -> Challenge:
        """Return the answer to a first word. Raises ProtocolError for one of another protocol."""
        if hello.protocol != PROTOCOL:
            raise ProtocolError(
                f"a worker speaks protocol {hello.protocol} of roles (robust-run {hello.version[:40]}), this job {PROTOCOL};"
                " install the same version of robust-run where its workers run"
            )
        if len(hello.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of {len(hello.nonce)} bytes instead of {NONCE_BYTES}")
        self._nonces = hello.nonce + self._nonce + self._channel
        return Challenge(nonce=self._nonce, proof=_proof(self._secret, b"orchestrator", self._nonces))

    def check(self, proof: Proof) -> tuple[bytes, bytes]:
        """Return the keys of what comes in and goes out. Raises ProtocolError where the worker does not know the secret."""
        said = _encoder.encode(proof.me)
        if not self._nonces or not hmac.compare_digest(
            proof.proof, _proof(self._secret, b"worker", self._nonces, said)
        ):
            raise ProtocolError("a worker does not know this job's secret")
        key_in, key_out = _keys(self._secret, self._nonces)
        return key_out, key_in


def _proof(secret: bytes, who: bytes, nonces: bytes, said: bytes = b"") -> bytes:
    return hmac.digest(secret, _LABEL + who + b"\0" + nonces + said, "sha256")


def _keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """Return the keys of what a worker receives, and of what it sends."""
    return _proof(secret, b"to worker", nonces), _proof(secret, b"from worker", nonces)
