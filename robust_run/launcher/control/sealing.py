"""Frames that carry a proof of their own: what is said after the handshake, only the two that shook hands can say. No sockets.

The handshake proves that both ends know the job's token. Without TLS, somebody on the way between them could let that pass
and then say something of their own, so from then on each frame ends in a seal:

    four bytes of length | payload | 16 bytes: BLAKE2b, keyed, over (number of the frame, length, payload)

Keys: one for each direction, derived from the token, both nonces, the TLS channel and the agent's whole Hello, so every
connection has its own. Numbers are counted by both ends and never sent. So a frame that was altered, made up, repeated,
left out, moved, cut short, sent back to its maker or taken from another connection is no frame, and neither is any that
follows it: an `Opener` that has refused once refuses for good, and its connection ends. What is cut off at the very end is a
connection that was lost, as a pulled cable makes it. Bytes are not hidden: that is what TLS is for.
"""

from __future__ import annotations

import hashlib
import hmac

from robust_run.launcher.control.errors import ProtocolError

SEAL_BYTES = 16
"""Appended to each frame."""
KEY_BYTES = 32
_NUMBER_BYTES = 8

_KEYS = b"robust-run frames\0"
_FROM_AGENT = b"\1agent to controller"
_FROM_CONTROLLER = b"\2controller to agent"


class ForgedFrame(ProtocolError):  # noqa: N818 (what it is, as the others)
    """A frame that the other end of the handshake has not sent here and now."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"frame {number} is not what the other end sent: something on the way alters or inserts bytes; "
            "nothing of it was obeyed (--tls-cert would hide them, too)"
        )


class Keys:
    """Both keys of a connection."""

    __slots__ = ("from_agent", "from_controller")

    def __init__(self, token: bytes, challenge: bytes, answer: bytes, channel: bytes, hello: bytes) -> None:
        """The nonces are the controller's and the agent's; `hello` is the payload of the agent's first frame.

        As in HKDF: extract with the nonces as salt, then expand, a label for each direction.
        """
        secret = hmac.digest(challenge + answer, token, "sha256")
        said = _KEYS + hashlib.sha256(channel).digest() + hashlib.sha256(hello).digest()
        self.from_agent = hmac.digest(secret, said + _FROM_AGENT, "sha256")
        self.from_controller = hmac.digest(secret, said + _FROM_CONTROLLER, "sha256")


class Sealer:
    """Seals frames 0, 1, 2, ... of one direction, in the order in which they are sent."""

    __slots__ = ("_keyed", "_number")

    def __init__(self, key: bytes) -> None:
        self._keyed = _keyed(key)
        self._number = 0

    def seal(self, frame: bytes) -> bytes:
        """Return what follows `frame` (length and payload) on the wire."""
        sealing = self._keyed.copy()
        sealing.update(self._number.to_bytes(_NUMBER_BYTES, "big"))
        sealing.update(frame)
        self._number += 1
        return sealing.digest()


class Opener:
    """Checks seals in the order in which frames arrive."""

    __slots__ = ("_forged_at", "_keyed", "_number")

    def __init__(self, key: bytes) -> None:
        self._keyed = _keyed(key)
        self._number = 0
        self._forged_at = -1

    def check(self, frame: bytes | memoryview, seal: bytes | memoryview) -> None:
        """Raise ForgedFrame unless `frame` (length and payload) is the next of the other end; then always."""
        if self._forged_at < 0:
            sealing = self._keyed.copy()
            sealing.update(self._number.to_bytes(_NUMBER_BYTES, "big"))
            sealing.update(frame)
            if hmac.compare_digest(sealing.digest(), seal):
                self._number += 1
                return
            self._forged_at = self._number
        raise ForgedFrame(self._forged_at)


def _keyed(key: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(key=key, digest_size=SEAL_BYTES)
