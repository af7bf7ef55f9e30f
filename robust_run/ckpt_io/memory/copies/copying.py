"""Sends parts to another node's keeper, and fetches them from one. Waits for the network: for threads of its own.

Training has the network first: after each chunk that is sent for a copy there is a rest as long as the chunk took.

A fetch that breaks off is tried again: a cable, a switch or a machine that stood still may be back in seconds, and what would be
given up is the step that the whole job starts from. Nothing is tried again where that cannot help: the keeper says that it does
not hold the part, there is no room here, nobody listens there any more (its keeper has ended), it has other TLS options, or
nobody waits for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import msgspec

from robust_run.ckpt_io.memory import buffers
from robust_run.ckpt_io.memory.agent_protocol import CopyTo, Source
from robust_run.ckpt_io.memory.budget import rounded
from robust_run.ckpt_io.memory.copies.filling import Filling
from robust_run.ckpt_io.memory.copies.greeting import Credentials, dial
from robust_run.ckpt_io.memory.copies.link import Link, LinkLost, LinkRefused, shut
from robust_run.ckpt_io.memory.copies.words import Go, Kept, Later, NoRoom, NotHere, Parcel, Pull, Push, Stale

DIAL_S = 10.0
#: To reserve takes 0.07 s per GiB; what came is hashed as it comes.
ANSWER_S = 120.0
#: How long a fetch that broke off rests before it is tried again: as often as there are numbers, and then no more.
FETCH_RESTS_S = (0.2, 1.0, 4.0)
#: No try begins so long after the first one broke off: the job waits for it, and an older step may be there at once.
FETCH_AGAIN_S = 45.0


class CopyFailed(Exception):  # noqa: N818 - never leaves this package
    """A part could not be sent or fetched: why, as a clause for people."""

    def __init__(self, reason: str, *, is_usual: bool = False, is_soon: bool = False, may_pass: bool = True) -> None:
        super().__init__(reason)
        self.is_soon = is_soon
        """The other one is not ready yet: it is worth a word to ask again soon."""
        self.is_usual = is_usual
        """Nothing is wrong: the other one is not ready, or no longer wants it."""
        self.may_pass = may_pass
        """It may be over in a moment: a job that ends, or a node that is lost, is no news about copies."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A part to send."""

    push: Push
    descriptor: int
    """For the sender alone."""


class Sender:
    """One node's. `send` is for one thread; `cut` for any."""

    def __init__(self, ours: Credentials, rest: Callable[[float], None]) -> None:
        """`rest` gets for how many seconds."""
        self._ours, self._rest_s = ours, rest
        self._link: Link | None = None
        self._dialing: socket.socket | None = None
        self._at = ("", 0)
        self._lock = threading.Lock()
        self._is_cut = False

    def send(self, to: CopyTo, parts: tuple[Outgoing, ...]) -> int:
        """Send the parts of a generation, until all are kept; return the stride of the one who keeps them.

        Raises:
            CopyFailed: Some are not.
        """
        stride = 1
        try:
            link = self._connected(to)
            for part in parts:
                stride = self._send(link, part)
            return stride
        except LinkLost as error:
            self._hang_up()
            raise CopyFailed(str(error), is_usual=self._is_cut) from error

    def _send(self, link: Link, part: Outgoing) -> int:
        link.send(part.push)
        answer: Go | Kept | NoRoom | Stale | Later = link.receive_one(Go, Kept, NoRoom, Stale, Later, wait_s=ANSWER_S)
        if isinstance(answer, Go):
            link.send_part(part.descriptor, part.push.used_bytes, self._rest)
            answer = link.receive_one(Kept, Stale, wait_s=ANSWER_S)
        if isinstance(answer, Kept):
            return answer.stride
        assert not isinstance(answer, Go), "it was answered"
        is_full = isinstance(answer, NoRoom)
        is_soon = isinstance(answer, Later)
        raise CopyFailed(answer.reason, is_usual=not is_full, is_soon=is_soon, may_pass=not is_full)

    def _rest(self, took_s: float) -> None:
        if self._is_cut:
            raise LinkLost("nobody waits for it any more")
        self._rest_s(took_s)

    def _connected(self, to: CopyTo) -> Link:
        link = self._link
        if link is not None and self._at == (to.host, to.port) and not link.is_worn:
            return link
        self._hang_up()
        link = dial(to.host, to.port, self._ours, DIAL_S, self._dials)
        with self._lock:
            self._link, self._dialing, self._at = link, None, (to.host, to.port)
            if self._is_cut:
                link.cut()
        return link

    def _dials(self, connection: socket.socket) -> None:
        """Have what is waited on be cut, too: one that has lost its power does not answer for long. Raises LinkLost."""
        with self._lock:
            self._dialing = connection
            if self._is_cut:
                raise LinkLost("nobody waits for it any more")

    def begin(self) -> None:
        """Let the next `send` run: those before it have been cut."""
        with self._lock:
            self._is_cut = False

    def cut(self) -> None:
        """Have what is being sent fail."""
        with self._lock:
            self._is_cut = True
            if self._link is not None:
                self._link.cut()
            if self._dialing is not None:
                shut(self._dialing)

    def _hang_up(self) -> None:
        with self._lock:
            link, self._link, self._dialing = self._link, None, None
        if link is not None:
            link.close()


@dataclass
class Errand:
    """A part that is fetched from another node, and how far that is. Written by the thread that does it."""

    source: Source
    pull: Pull
    done_bytes: int = 0
    of_bytes: int = 0
    off: threading.Event = field(default_factory=threading.Event)
    """Nobody waits for it any more."""
    until_s: float | None = None
    """On the monotonic clock, when it is given up."""

    def note(self, done_bytes: int) -> None:
        """Take in how much has come. Raises LinkLost: that is enough."""
        self.done_bytes = done_bytes
        if self.off.is_set():
            raise LinkLost("nobody waits for it any more")
        if self.until_s is not None and time.monotonic() > self.until_s:
            raise LinkLost(f"{done_bytes} of {self.of_bytes} bytes came in {self.source.within_s:g} s")


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """A part that was fetched, in a buffer of its own."""

    parcel: Parcel
    descriptor: int
    size_bytes: int


def fetch(
    errand: Errand, ours: Credentials, ledger: buffers.Ledger, now_s: Callable[[], float] = time.monotonic
) -> Brought:
    """Fetch a part; again where it breaks off, as `FETCH_RESTS_S` and `FETCH_AGAIN_S` say.

    Raises:
        CopyFailed: It is not there, not whole, or there is no room for it.
    """
    broke_at_s: float | None = None
    errand.until_s = now_s() + errand.source.within_s if errand.source.within_s else None
    for tries, rest_s in enumerate((*FETCH_RESTS_S, None), 1):
        try:
            return _fetch_once(errand, ours, ledger)
        except _BrokeOff as error:
            broke_at_s = now_s() if broke_at_s is None else broke_at_s
            is_late = rest_s is None or now_s() + rest_s > min(broke_at_s + FETCH_AGAIN_S, errand.until_s or inf)
            if rest_s is None or is_late or not error.may_pass or errand.off.wait(rest_s):
                often = f" ({tries} times)" if tries > 1 else ""
                raise CopyFailed(f"{error}{often}") from error
    raise AssertionError("the last try has no rest after it")


class _BrokeOff(Exception):  # noqa: N818 - never leaves this module
    """One try broke off: why, as a clause for people."""

    def __init__(self, reason: str, cause: LinkLost) -> None:
        super().__init__(f"{reason}: {cause}")
        self.may_pass = not isinstance(cause, LinkRefused)


def _fetch_once(errand: Errand, ours: Credentials, ledger: buffers.Ledger) -> Brought:
    source = errand.source
    errand.done_bytes = 0
    try:
        link = dial(source.host, source.port, ours, DIAL_S)
    except LinkLost as error:
        raise _BrokeOff(f"{_name(source)} cannot be reached", error) from error
    try:
        return _fetched(link, errand, ledger)
    except LinkLost as error:
        raise _BrokeOff(f"{_name(source)} did not give its copy", error) from error
    finally:
        link.close()


def _fetched(link: Link, errand: Errand, ledger: buffers.Ledger) -> Brought:
    link.send(errand.pull)
    parcel: Parcel | NotHere = link.receive_one(Parcel, NotHere)
    if isinstance(parcel, NotHere):
        raise CopyFailed(f"{_name(errand.source)} did not give its copy: {parcel.reason}")
    if parcel.generation != (errand.pull.attempt, errand.pull.step):
        raise LinkLost("it sent another step")
    errand.of_bytes = parcel.used_bytes
    size_bytes = parcel.room_bytes if parcel.room_bytes >= parcel.used_bytes else rounded(parcel.used_bytes)
    try:
        filling = Filling(ledger, errand.pull.rank, size_bytes)
    except buffers.NoRoom as error:
        raise CopyFailed(str(error)) from error
    try:
        if not link.receive_part(filling.descriptor, parcel, lambda done_bytes: _note(errand, filling, done_bytes)):
            raise LinkLost("what came is not what was sent")
        filling.settle(parcel.used_bytes)
    except buffers.NoRoom as error:
        filling.drop()
        raise CopyFailed(str(error)) from error
    except BaseException:
        filling.drop()
        raise
    return Brought(parcel=parcel, descriptor=filling.descriptor, size_bytes=size_bytes)


def _note(errand: Errand, filling: Filling, done_bytes: int) -> None:
    filling.wrote(done_bytes)
    errand.note(done_bytes)


def _name(source: Source) -> str:
    return source.name or f"{source.host}:{source.port}"


def close_all(parts: tuple[Outgoing, ...]) -> None:
    """Close the descriptors of parts that have been sent, or will not be."""
    for each in parts:
        with contextlib.suppress(OSError):
            os.close(each.descriptor)
