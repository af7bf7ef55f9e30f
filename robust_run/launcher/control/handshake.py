"""Authentication handshake: two peers find out that they speak the same protocol and know the same secret. No sockets, no clock.

Each side sends one line first, `robust-run PROTOCOL VERSION`, in a form that no later version may change. A controller
that cannot talk to an agent answers with its own line and `refused TEXT`, which every version can read.

Then each proves that it knows the job's token without sending it: HMAC-SHA256 over who it is (so that no proof can be
sent back to its maker), both nonces (so that none can be replayed), the TLS channel where there is one (so that nobody
can stand in between) and the message that carries the proof (so that it cannot be altered).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any, Literal

import msgspec

from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.messages import PROTOCOL, Hello, JoinRefused, Welcome
from robust_run.version import __version__

NONCE_BYTES = 32
LONGEST_LINE_BYTES = 128
"""Of the first line."""
LONGEST_REFUSAL_BYTES = 1000
"""Of the text of a refusal."""
REFUSED = b"refused "
"""What a line with a refusal starts with. No frame of a handshake does: it would be 1.9 GB long."""

_FIRST_WORD = b"robust-run "
# What follows the version is for later versions, and ignored.
_LINE = re.compile(rb"robust-run ([1-9][0-9]{0,8}) ([!-~]{1,64})(?: [ -~]*)?")
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")

Role = Literal["agent", "controller"]


class Speaks(msgspec.Struct, frozen=True):
    """What one side says of itself in its first line."""

    protocol: int
    version: str


OURS = Speaks(PROTOCOL, __version__)


def first_line(speaks: Speaks) -> bytes:
    """Return the line that each side sends first."""
    return b"%s%d %s\n" % (_FIRST_WORD, speaks.protocol, speaks.version.encode("ascii"))


def read_first_line(received: bytes | bytearray) -> tuple[Speaks, int] | None:
    """Return what the peer speaks and how many bytes its line took; None where more bytes are needed.

    Raises ProtocolError as soon as it can be no such line.
    """
    if not received.startswith(_FIRST_WORD[: len(received)]):
        raise ProtocolError("it does not speak robust-run's protocol")
    end = received.find(b"\n", 0, LONGEST_LINE_BYTES)
    if end < 0:
        if len(received) >= LONGEST_LINE_BYTES:
            raise ProtocolError(f"its first line is longer than {LONGEST_LINE_BYTES} bytes")
        return None
    found = _LINE.fullmatch(received, 0, end)
    if found is None:
        raise ProtocolError("its first line is no `robust-run PROTOCOL VERSION`")
    return Speaks(int(found[1]), found[2].decode("ascii")), end + 1


def mismatch(who: str, theirs: Speaks, here: str, ours: Speaks) -> str:
    """Return the sentence for two peers that cannot talk to each other."""
    return (
        f"{who} speaks protocol {theirs.protocol} (robust-run {theirs.version}), {here} speaks {ours.protocol} "
        f"(robust-run {ours.version}); install the same version on all nodes"
    )


def refusal_line(text: str) -> bytes:
    """Return a refusal in the form that every version can read."""
    return REFUSED + printable(text).encode("ascii") + b"\n"


def printable(text: str) -> str:
    """Return a text that a peer chose as one line that does nothing to a terminal."""
    return "".join(c if " " <= c <= "~" else "?" for c in text[:LONGEST_REFUSAL_BYTES])


def sealed(
    message: Hello | Welcome | JoinRefused, token: bytes, challenge: bytes, answer: bytes, channel: bytes
) -> bytes:
    """Return the encoded message with its proof filled in. The nonces are the controller's and the agent's."""
    fields = _fields(msgspec.msgpack.encode(message))
    fields["proof"] = _proof(_role(message), token, challenge, answer, channel, fields)
    return msgspec.msgpack.encode(fields)


def is_proven(
    message: Hello | Welcome | JoinRefused,
    payload: bytes,
    token: bytes,
    challenge: bytes,
    answer: bytes,
    channel: bytes,
) -> bool:
    """Whether the sender of `payload`, which was decoded to `message`, knows the token."""
    if len(challenge) != NONCE_BYTES or len(answer) != NONCE_BYTES:
        return False
    expected = _proof(_role(message), token, challenge, answer, channel, _fields(payload))
    return hmac.compare_digest(expected, message.proof)


def flaw(hello: Hello) -> str:
    """Return what is wrong with how an agent names itself, empty if nothing: names end up in files and on terminals."""
    node = hello.node
    if not _IDENTIFIER.fullmatch(node.id):
        return f"its id {printable(node.id)[:80]!r} is no name of at most 64 letters, digits, `.`, `_` and `-`"
    if not _HOST_NAME.fullmatch(node.name):
        return f"its host name {printable(node.name)[:80]!r} is no host name of at most 255 characters"
    if not 1 <= node.nproc <= 65536:
        return f"it offers {node.nproc} workers; 1 to 65536 are possible"
    longest = max(len(text) for text in (node.address, node.candidate, node.version, hello.job, hello.nnodes))
    return f"it names something with {longest} characters; at most 1024 are possible" if longest > 1024 else ""


def _role(message: Hello | Welcome | JoinRefused) -> Role:
    return "agent" if isinstance(message, Hello) else "controller"


def _fields(payload: bytes) -> dict[str, Any]:
    """Return a message as a plain map, so that a field this version does not know is covered by the proof too."""
    try:
        fields = msgspec.msgpack.decode(payload, type=dict[str, Any])
        fields["proof"] = b""
        msgspec.msgpack.encode(fields)
    except Exception as error:  # whatever hostile bytes can bring about
        raise ProtocolError(f"no message of this protocol ({type(error).__name__})") from None
    return fields


def _proof(role: Role, token: bytes, challenge: bytes, answer: bytes, channel: bytes, fields: dict[str, Any]) -> bytes:
    """Return the proof that goes into `fields`, whose own `proof` is empty. Every part but the last has a fixed length."""
    parts = (
        f"robust-run {role:<10}".encode("ascii"),
        challenge,
        answer,
        hashlib.sha256(channel).digest(),
        msgspec.msgpack.encode(fields),
    )
    return hmac.new(token, b"".join(parts), hashlib.sha256).digest()
