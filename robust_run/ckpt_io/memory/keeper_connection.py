"""A worker's connection to the memory keeper of its node: questions, answers, and the descriptors beside them. Blocking, with
timeouts.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from robust_run.ckpt_io.errors import MemoryUnavailable
from robust_run.ckpt_io.memory import place
from robust_run.ckpt_io.memory.frames import FrameRefused, frame, take
from robust_run.ckpt_io.memory.protocol import Attach, FromKeeper, Refused
from robust_run.ckpt_io.memory.types import BUFFERS

_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromKeeper)
_Answer = TypeVar("_Answer")
_Other = TypeVar("_Other")


class KeeperConnection:
    """One connection, for one thread, of the process that made it. It is hung up as soon as an answer could be another one's."""

    def __init__(self, folder: str, timeout_s: float, on_end: Callable[[], None]) -> None:
        """Connect to the keeper in a folder. `on_end` is called when the connection is no more.

        Raises:
            MemoryUnavailable: There is none.
        """
        try:
            self._socket: socket.socket | None = place.connect(folder, timeout_s)
        except OSError as error:
            raise MemoryUnavailable(f"the memory keeper in {folder} cannot be reached: {_why(error)}") from error
        self._timeout_s, self._on_end = timeout_s, on_end
        self._pid = os.getpid()
        self._came = bytearray()
        self._descriptors: list[int] = []

    def ask(
        self, question: msgspec.Struct, kind: type[_Answer], or_kind: type[_Other], timeout_s: float | None = None
    ) -> _Answer | _Other:
        """Return the answer, of one of two kinds. Raises MemoryUnavailable for another, and for none within the time."""
        answer = self.ask_for_any(question, self._timeout_s if timeout_s is None else timeout_s)
        if isinstance(answer, (kind, or_kind)):
            return answer
        raise self.unexpected(question, answer)

    def ask_for_any(self, question: msgspec.Struct | None, timeout_s: float) -> Any:
        """Ask, or wait for what else is answered to the question before."""
        try:
            if question is not None:
                self.send(question)
            return self._answer(timeout_s)
        except MemoryUnavailable:
            raise
        except BaseException:  # a signal's handler, in between: the answer would be taken for that of the next question
            self.hang_up()
            raise

    def unexpected(self, question: msgspec.Struct, answer: Any) -> MemoryUnavailable:
        """Return what an answer of another kind means."""
        self.take_descriptors(0)
        if isinstance(answer, Refused):
            if isinstance(question, Attach):
                self.hang_up()
            return MemoryUnavailable(answer.reason)
        return self.lost(f"answered {type(question).__name__} with {type(answer).__name__}")

    def send(self, message: msgspec.Struct) -> None:
        """Say something, without an answer. Raises MemoryUnavailable."""
        connection = self._connection()
        try:
            connection.settimeout(self._timeout_s)
            connection.sendall(frame(message))
        except OSError as error:
            raise self.lost(f"does not listen any more: {_why(error)}") from error

    def _answer(self, timeout_s: float) -> Any:
        connection, until_s = self._connection(), time.monotonic() + timeout_s
        try:
            while (body := take(self._came)) is None:
                connection.settimeout(max(0.001, until_s - time.monotonic()))
                content, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, BUFFERS, socket.MSG_CMSG_CLOEXEC)
                self._descriptors += descriptors
                if not content:
                    raise self.lost("has gone")
                self._came += content
            return _decoder.decode(body)
        except OSError as error:
            raise self.lost(f"does not answer: {_why(error)}") from error
        except (FrameRefused, msgspec.MsgspecError) as error:
            raise self.lost(f"sent no message of its own: {error}") from error

    def _connection(self) -> socket.socket:
        if self._socket is None:
            raise MemoryUnavailable("the connection to the memory keeper was closed")
        if self._pid != os.getpid():
            raise MemoryUnavailable(f"the connection to the memory keeper belongs to process {self._pid}")
        return self._socket

    def take_descriptors(self, wanted: int) -> list[int]:
        """Return as many as belong to the answer. Raises MemoryUnavailable where they are others."""
        came, self._descriptors = self._descriptors, []
        if len(came) == wanted:
            return came
        for each in came:
            os.close(each)
        raise self.lost(f"sent {len(came)} descriptors in place of {wanted}")

    def lost(self, what: str) -> MemoryUnavailable:
        """Hang up: an answer that comes later would be taken for another one's."""
        self.hang_up()
        return MemoryUnavailable(f"the memory keeper {what}")

    def hang_up(self) -> None:
        """End it; what came beside answers is closed."""
        for each in self._descriptors:
            os.close(each)
        self._descriptors = []
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._on_end()


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
