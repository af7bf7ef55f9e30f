"""State machine of the handshake, both halves. No sockets: bytes go in, bytes come out.

A half is fed with `take`, which returns what to send; it is done when its result (`hello`, `welcome`) is there. From then
on its `reader` has the bytes that followed, and its `sealer` seals what is sent: all that follows an agent's Hello and a
controller's Welcome, or its refusal of an agent that has proven itself (see `sealing`).
"""

from __future__ import annotations

import os

import msgspec

from robust_run.launcher.control import frames, handshake
from robust_run.launcher.control.errors import JoinRefusal, NotController, ProtocolError, VersionMismatch, WrongToken
from robust_run.launcher.control.handshake import Speaks
from robust_run.launcher.control.messages import Challenge, EventReport, Hello, JoinRefused, Welcome
from robust_run.launcher.control.sealing import Keys, Opener, Sealer

GREETING_FRAME_BYTES = 1 << 20
"""Largest frame that an agent reads before the controller has proven itself."""
SAME_TOKEN = (
    "give all nodes the same one with ROBUST_TOKEN or --token-file, and the same --rdzv-id and --run-id"  # noqa: S105 (no password)
    " (pods that share nothing: docs/many-nodes.md, or --insecure-rendezvous on all)"
)
OTHER_JOB = "another job may use this port"
NEEDS_CERTIFICATE = "if its controller has --tls-ca, this agent needs --tls-cert and --tls-key of that CA"
_TLS_RECORDS = (b"\x15", b"\x16")  # alert, handshake


class TurnedAway(Exception):  # noqa: N818 (no error of ours: an outcome)
    """A controller's half does not let its peer in."""

    def __init__(self, why: str, answer: bytes, briefly: str = "") -> None:
        super().__init__(why)
        self.why = why
        """For the controller's own records."""
        self.answer = answer
        """What to send before closing."""
        self.briefly = briefly
        """For the user; empty: the peer is no agent."""


class ControllerHalf:
    """Lets in whoever speaks the same protocol and knows the token."""

    def __init__(self, token: bytes, speaks: Speaks, who: str, channel: bytes = b"") -> None:
        self.reader = frames.FrameReader()
        self.hello: Hello | None = None
        """Complete, once the agent has proven itself and said all it has to say."""
        self.sealer: Sealer | None = None
        """Set once the agent has proven itself."""
        self._token = token
        self._speaks = speaks
        self._who = who  # for messages: "the agent at ADDRESS"
        self._channel = channel
        self._nonce = os.urandom(handshake.NONCE_BYTES)
        self._line: bytearray | None = bytearray()  # None: the first line is read
        self._proven: Hello | None = None
        self._greeted_by: bytes | None = None  # nonce of an agent that has proven itself

    def opening(self) -> bytes:
        """Return what is sent before anything is received."""
        return handshake.first_line(self._speaks)

    def take(self, data: bytes) -> bytes:
        """Go on with what was received. Raises TurnedAway."""
        if self._line is None:
            self.reader.feed(data)
            self._read_frames()
            return b""
        self._line += data
        try:
            found = handshake.read_first_line(self._line)
        except ProtocolError as error:
            raise TurnedAway(f"{self._who}: {error}", handshake.refusal_line(str(error))) from None
        if found is None:
            return b""
        theirs, used = found
        if theirs.protocol != self._speaks.protocol:
            text = handshake.mismatch(self._who, theirs, "this controller", self._speaks)
            its = f"protocol {theirs.protocol} (robust-run {handshake.printable(theirs.version)})"
            brief = f"it speaks {its}, this controller {self._speaks.protocol} ({self._speaks.version})"
            raise TurnedAway(text, handshake.refusal_line(text), brief)
        self.reader.feed(bytes(self._line[used:]))
        self._line = None
        self._read_frames()
        return frames.encode(Challenge(nonce=self._nonce))

    def welcome(self, welcome: Welcome) -> bytes:
        """Return the frame that lets the agent in."""
        assert self.hello is not None
        payload = handshake.sealed(welcome, self._token, self._nonce, self.hello.nonce, self._channel)
        return frames.framed(payload)

    @property
    def is_proven(self) -> bool:
        """Whether the agent knows the token."""
        return self.sealer is not None

    def _read_frames(self) -> None:
        try:
            if self._proven is None:
                self._read_hello()
            if self._proven is not None and self.hello is None:
                self._read_events(self._proven)
        except ProtocolError as error:
            raise self._turned_away(str(error)) from None

    def _read_hello(self) -> None:
        payload = self.reader.next()
        if payload is None:
            return
        hello = frames.decode_from_agent(payload)
        if not isinstance(hello, Hello):
            raise ProtocolError(f"a {type(hello).__name__} where a Hello belongs")
        if not handshake.is_proven(hello, payload, self._token, self._nonce, hello.nonce, self._channel):
            text = f"its token differs from the controller's; {SAME_TOKEN}"
            brief = f"its token differs; {SAME_TOKEN}; or it is of another job"
            raise TurnedAway(f"{self._who}: {text}", frames.encode(JoinRefused(reason=text, wrong_token=True)), brief)
        keys = Keys(self._token, self._nonce, hello.nonce, self._channel, payload)
        self.sealer = Sealer(keys.from_controller)
        self._greeted_by = hello.nonce
        self.reader.expect_seals(Opener(keys.from_agent))
        self.reader.limit_bytes = frames.LARGEST_FRAME_BYTES
        if wrong := handshake.flaw(hello):
            raise ProtocolError(wrong)
        self._proven = hello

    def _read_events(self, hello: Hello) -> None:
        if not hello.events_follow:
            self.hello = hello
            return
        payload = self.reader.next()
        if payload is None:
            return
        report = frames.decode_from_agent(payload)
        if not isinstance(report, EventReport):
            raise ProtocolError(f"a {type(report).__name__} where a Report belongs")
        self.hello = msgspec.structs.replace(hello, events=report.events, events_follow=False)

    def refusal(self, refused: JoinRefused) -> bytes:
        """Return the frame that does not let the agent in, with a proof where it has given one."""
        if self._greeted_by is None:
            return frames.encode(refused)
        payload = handshake.sealed(refused, self._token, self._nonce, self._greeted_by, self._channel)
        return frames.framed(payload)

    def _turned_away(self, text: str) -> TurnedAway:
        return TurnedAway(f"{self._who}: {text}", self.refusal(JoinRefused(reason=text)))


class AgentHalf:
    """Joins a controller that speaks the same protocol and knows the token."""

    def __init__(self, token: bytes, speaks: Speaks, hello: Hello, where: str, channel: bytes = b"") -> None:
        self.reader = frames.FrameReader(GREETING_FRAME_BYTES)
        self.welcome: Welcome | None = None
        """Set once the controller has proven itself and let this agent in."""
        self.sealer: Sealer | None = None
        """Set once this agent has said who it is."""
        self._token = token
        self._speaks = speaks
        self._where = where  # HOST:PORT, for messages
        self._channel = channel
        self._hello = msgspec.structs.replace(
            hello, nonce=os.urandom(handshake.NONCE_BYTES), events=(), events_follow=bool(hello.events)
        )
        self._events = hello.events
        self._challenge = b""
        self._keys: Keys | None = None
        self._line = bytearray()
        self._is_controller = False  # its first line was right
        self._in_frames = False

    def opening(self) -> bytes:
        """Return what is sent before anything is received."""
        return handshake.first_line(self._speaks)

    def take(self, data: bytes) -> bytes:
        """Go on with what was received. Raises Refusal, NotController."""
        if self._in_frames:
            self.reader.feed(data)
        else:
            self._line += data
            self._read_lines()
        try:
            return self._read_frames()
        except ProtocolError as error:
            raise NotController(f"{self._where}: {error}") from None

    def unfinished(self) -> str:
        """Return what to say where the peer closed the connection before the handshake was done."""
        if not self._line and not self._is_controller:
            advice = (
                NEEDS_CERTIFICATE if self._channel else "if its controller has --tls-cert, this agent needs the same"
            )
            return f"{self._where} closed the connection before it said anything; {advice}"
        return f"{self._where} closed the connection during the handshake"

    def _read_lines(self) -> None:
        if not self._is_controller:
            try:
                found = handshake.read_first_line(self._line)
            except ProtocolError:
                raise self._not_controller() from None
            if found is None:
                return
            theirs, used = found
            if theirs.protocol != self._speaks.protocol:
                who = f"the controller at {self._where}"
                raise VersionMismatch(handshake.mismatch(who, theirs, "this agent", self._speaks))
            self._is_controller = True
            del self._line[:used]
        if self._line and not self._is_refusal():
            self.reader.feed(bytes(self._line))
            self._in_frames = True

    def _is_refusal(self) -> bool:
        """Whether what follows the first line is, or may become, a line that refuses. Raises Refusal once it is whole."""
        line = self._line
        if not line.startswith(handshake.REFUSED[: len(line)]):
            return False
        end = line.find(b"\n")
        if end >= 0 or len(line) > handshake.LONGEST_REFUSAL_BYTES:
            text = line[len(handshake.REFUSED) : end if end >= 0 else None].decode("ascii", "replace")
            raise JoinRefusal(f"the controller at {self._where} refuses: {handshake.printable(text)}", final=True)
        return True

    def _not_controller(self) -> NotController:
        if self._line.startswith(_TLS_RECORDS):
            return NotController(
                f"{self._where} speaks TLS; give this node --tls-cert, --tls-key, --tls-ca as the others"
            )
        return NotController(
            f"{self._where} answers, but not as a controller of robust-run; check the host and the port"
        )

    def _read_frames(self) -> bytes:
        answer = b""
        while self._in_frames and self.welcome is None and (payload := self.reader.next()) is not None:
            message = frames.decode_from_controller(payload)
            if isinstance(message, JoinRefused):
                raise self._refused(message, payload)
            if isinstance(message, Challenge) and not self._challenge:
                answer += self._answer(message)
            elif isinstance(message, Welcome) and self._challenge:
                self._check(message, payload)
            else:
                raise ProtocolError(f"a {type(message).__name__} in the middle of the handshake")
        return answer

    def _answer(self, challenge: Challenge) -> bytes:
        if len(challenge.nonce) != handshake.NONCE_BYTES:
            raise ProtocolError(f"a nonce of {len(challenge.nonce)} bytes instead of {handshake.NONCE_BYTES}")
        self._challenge = challenge.nonce
        payload = handshake.sealed(self._hello, self._token, self._challenge, self._hello.nonce, self._channel)
        self._keys = Keys(self._token, self._challenge, self._hello.nonce, self._channel, payload)
        self.sealer = Sealer(self._keys.from_agent)
        greeting = frames.framed(payload)
        if self._events:
            report = frames.encode(EventReport(events=self._events))
            greeting += report + self.sealer.seal(report)
        return greeting

    def _check(self, welcome: Welcome, payload: bytes) -> None:
        nonce = self._hello.nonce
        if not handshake.is_proven(welcome, payload, self._token, self._challenge, nonce, self._channel):
            raise WrongToken(f"the token of {self._where} differs from this agent's; {SAME_TOKEN}; {OTHER_JOB}")
        assert self._keys is not None
        self.reader.expect_seals(Opener(self._keys.from_controller))
        self.reader.limit_bytes = frames.LARGEST_FRAME_BYTES
        self.welcome = welcome

    def _refused(self, refused: JoinRefused, payload: bytes) -> JoinRefusal:
        if refused.wrong_token:
            return WrongToken(
                f"the token of this agent differs from that of the controller at {self._where}; "
                f"{SAME_TOKEN}; {OTHER_JOB}"
            )
        reason = handshake.printable(refused.reason)
        is_proven = bool(self._challenge) and handshake.is_proven(
            refused, payload, self._token, self._challenge, self._hello.nonce, self._channel
        )
        return JoinRefusal(
            f"the controller at {self._where} refuses: {reason}", final=refused.final, is_proven=is_proven
        )


def digest(snapshot: bytes) -> str:
    """Return what tells two snapshots of a job's environment apart; empty for none."""
    import hashlib

    return hashlib.sha256(snapshot).hexdigest() if snapshot else ""
