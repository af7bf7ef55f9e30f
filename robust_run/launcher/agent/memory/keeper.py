"""The agent's side of the keeper: the process that holds in memory what this node's ranks save (`robust_run.ckpt_io.memory`).

It is started when the first workers have been, and outlives them and their attempts. One that dies takes with it what it held:
that is said once, and the next attempt gets another. Imported where a job keeps checkpoints in memory.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.ckpt_io.memory.agent_protocol import (
    CopyTo,
    Flushed,
    FlushLast,
    FromAgent,
    GoBy,
    KeeperNote,
    KeeperReady,
    KeeperSetup,
    LookInMemory,
    MemoryLook,
    NeedsStrides,
    ToAgent,
)
from robust_run.ckpt_io.memory.frames import FrameRefused, frame, take
from robust_run.ckpt_io.memory.pace import Strides
from robust_run.ckpt_io.memory.process import command
from robust_run.ckpt_io.memory.protocol import SOCKET
from robust_run.ckpt_io.seen import MemoryHeld
from robust_run.errors import RobustRunError
from robust_run.launcher.agent.memory.attempts import attempt_of, brought
from robust_run.launcher.agent.workers.store import StartsHelpers
from robust_run.launcher.model.actions import StartAttempt
from robust_run.launcher.model.resume_events import MemoryPeers, MemoryStrides

#: A keeper that does not say what it holds within this time is not waited for: the attempt starts without. It hashes what was
#: copied last before it says so (`ckpt_io.memory.keeper.looks`), and the controller waits for longer (`core.resume.looks`).
ANSWER_S = 7.0
_MOST_READ_BYTES = 1 << 16
_NOTE_CHARACTERS = 500

_DECODER: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)

Listen = Callable[[socket.socket, Callable[[], None] | None], None]


class MemoryKeeper:
    """One node's. Used from the agent's thread, but for `held`."""

    def __init__(
        self,
        start: StartsHelpers,
        env: Mapping[str, str],
        setup: KeeperSetup,
        say: Callable[[str], None],
        ready: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`ready` is called with the port that keepers of other nodes reach it at, and with 0 when it is gone."""
        self._start = start
        self._env = env
        self._setup = setup
        self._folder = setup.folder
        self._say = say
        self._ready = ready
        self._socket: socket.socket | None = None
        """None: no keeper runs."""
        self._listen: Listen | None = None
        self._came = bytearray()
        self._answered = threading.Condition()
        self._number = 0
        self._look: MemoryLook | None = None
        """The newest answer."""
        self._silent_s = 0.0
        """How long it has left the last question unanswered, which is still to be said; 0: it has not."""
        self.pid: int | None = None
        """Of the process that was started last."""
        self._when_flushed: Callable[[Flushed | None], None] = lambda _: None
        self.when_needed: Callable[[int, int, int], None] = lambda *_: None
        """Called with an attempt, and the strides at which this node can keep steps, and copy them."""

    @property
    def is_running(self) -> bool:
        """Whether there is a keeper, as far as is known."""
        return self._socket is not None

    def open(self) -> None:
        """Start a keeper if there is none; if it cannot be, that is said."""
        self._read()  # one that has died by now is not told, but replaced
        if self._socket is None:
            self._open()

    def begin(self, order: StartAttempt) -> bool:
        """Tell the keeper of an attempt that begins, and start one if there is none; false: there is none, which was said."""
        if self._silent_s:  # said here: whoever asked has a thread of its own
            self._say(
                f"the keeper of checkpoints in memory (pid {self.pid}) did not answer within {self._silent_s:g} s: "
                "what it holds was passed over"
            )
            self._silent_s = 0.0
        self.open()
        messages: tuple[FromAgent, ...] = (*brought(order), attempt_of(order))
        if self._socket is not None and not all(map(self._send, messages)):
            self._lost("does not read its orders")  # it would hand out what belongs to another past
        return self._socket is not None

    def copy_to(self, order: MemoryPeers) -> None:
        """Tell it which node gets copies of what it holds."""
        for peer in order.peers[:1]:
            self._send(CopyTo(attempt=order.attempt, host=peer.host, port=peer.port, name=peer.name))

    def go_by(self, order: MemoryStrides) -> None:
        """Tell it which steps all nodes keep and copy."""
        self._send(GoBy(attempt=order.attempt, strides=Strides(order.keeps, order.copies)))

    def attach(self, listen: Listen) -> None:
        """Read what it says as it comes, from now on; whichever keeper runs."""
        self._listen = listen
        if self._socket is not None:
            listen(self._socket, self._read)

    def held(self, limit_s: float = ANSWER_S) -> MemoryHeld:
        """Return what it holds whole; nothing, if it does not say so in time. For another thread than the agent's."""
        silent = MemoryHeld()
        with self._answered:
            self._number += 1
            number = self._number
            if self._socket is None or not self._send(LookInMemory(number=number)):
                return silent
            self._answered.wait_for(lambda: self._socket is None or self._has_answered(number), limit_s)
            look = self._look
            if look is None or look.number != number:
                self._silent_s = limit_s if self._socket is not None else 0.0
                return silent
            return MemoryHeld(generations=look.generations, room_bytes=look.room_bytes)

    def flush(
        self,
        limit_s: float,
        others_s: float,
        then: Callable[[Flushed | None], None],
        *,
        is_job_over: bool,
        stands_in: tuple[int, ...],
    ) -> None:
        """Have what is newest written to storage, for the job is over; `then` hears of it, None: there is no keeper any more.

        Called again, with less time, what was said last counts; 0: give it up. Other nodes may show no sign for `others_s`.
        `is_job_over`: else that is only known of this node. `stands_in`: ranks of lost nodes whose copies are written, too.
        """
        self._when_flushed = then
        last = FlushLast(number=0, limit_s=limit_s, others_s=others_s, is_job_over=is_job_over, stands_in=stands_in)
        if self._socket is None or not self._send(last):
            then(None)

    def end(self) -> None:
        """Let the process end, with all it holds; what it says from now on is not heard. The agent reaps it."""
        self._hang_up()
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, SOCKET))
        with suppress(OSError):
            os.rmdir(self._folder)

    def _has_answered(self, number: int) -> bool:
        return self._look is not None and self._look.number >= number

    # --- the process

    def _open(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            _make_folder(self._folder)
            env = {name: value for name, value in self._env.items() if name not in _NOT_ITS_BUSINESS}
            self.pid = self._start(command(theirs.fileno()), env, (theirs.fileno(),))
        except (OSError, RobustRunError) as error:
            ours.close()
            self._say(f"checkpoints are not kept in memory in this attempt: the keeper cannot be started: {error}")
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket, self._came = ours, bytearray()
        self._send(self._setup)
        if self._listen is not None:
            self._listen(ours, self._read)

    def _send(self, message: FromAgent) -> bool:
        """Messages are few and short: one that does not fit into the socket is for a keeper that stands still."""
        sock = self._socket
        if sock is None:
            return False
        try:
            sock.sendall(frame(message))
        except OSError:  # if it is gone, reading says so
            return False
        return True

    def _read(self) -> None:
        """Take in what it has said; without waiting."""
        while self._socket is not None:
            try:
                content = self._socket.recv(_MOST_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                content = b""
            if not content:
                self._lost("has ended")
                return
            self._came += content
            if not self._take_all():
                self._lost("sent a message that cannot be read")
                return

    def _take_all(self) -> bool:
        """Take in the messages that are complete; whether all of it made sense."""
        try:
            while (body := take(self._came)) is not None:
                self._take(_DECODER.decode(body))
        except (FrameRefused, msgspec.MsgspecError):
            return False
        return True

    def _take(self, message: ToAgent) -> None:
        if isinstance(message, KeeperNote):
            text = message.text[:_NOTE_CHARACTERS]
            self._say(text if text.isprintable() else repr(text))
        elif isinstance(message, Flushed):
            self._when_flushed(message)
        elif isinstance(message, MemoryLook):
            with self._answered:
                self._look = message
                self._answered.notify_all()
        elif isinstance(message, NeedsStrides):
            self.when_needed(message.attempt, message.strides.keeps, message.strides.copies)
        elif isinstance(message, KeeperReady) and message.port:
            self._ready(message.port)

    def _lost(self, what: str) -> None:
        self._hang_up()
        self._ready(0)
        self._say(
            f"the keeper, process {self.pid}, {what}: the checkpoints it held in memory are lost; the next attempt gets another"
        )

    def _hang_up(self) -> None:
        sock = self._socket
        if sock is None:
            return
        if self._listen is not None:
            self._listen(sock, None)
        with self._answered:
            self._socket = None
            self._answered.notify_all()
        sock.close()
        self._when_flushed(None)


#: The job's secret, and what would have the keeper be traced or start from somewhere, as a worker is.
_NOT_ITS_BUSINESS = frozenset(("ROBUST_TOKEN", "ROBUST_NOTIFY", "ROBUST_CKPT_MEMORY", "ROBUST_RESUME"))


def _make_folder(path: str) -> None:
    """Make the folder of the socket, for us alone; one of a keeper that died is used again, without its socket."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(path, SOCKET))
