"""Asking a running server: a Unix socket, a line of JSON each way. Only its own user and root are answered.

The socket is the keeper's, so it stays when a server is replaced; who asks meanwhile waits for the next one.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar

import msgspec

from robust_run.decoders import json_decoder
from robust_run.prefetch.errors import ControlFailed
from robust_run.prefetch.rules.types import BlockRun, Status, Touch
from robust_run.prefetch.server.config import Background

_LARGEST_LINE_BYTES = 256 << 20
_LARGEST_REQUEST_BYTES = 32 << 20
_MOST_CONNECTIONS = 16
_IDLE_S = 30.0
_REFUSED_PAUSE_S = 0.1


class AskStatus(msgspec.Struct, frozen=True, tag="status"):
    """Answered with `Status`."""


class AskTouches(msgspec.Struct, frozen=True, tag="touches"):
    """Answered with `Touches`."""


class AskPrefetch(msgspec.Struct, frozen=True, tag="prefetch"):
    """Fetch these. Answered with `Done`: how many blocks are new."""

    runs: tuple[BlockRun, ...]


class AskBackground(msgspec.Struct, frozen=True, tag="background"):
    """Fetch the rest, or stop fetching it. Answered with `Done`. A server that takes over knows it too."""

    background: Background


class AskPeers(msgspec.Struct, frozen=True, tag="peers"):
    """Share blocks with these; see `PeerOptions`. Answered with `Done`: how many they are, 0 where nothing is shared.

    A server that takes over knows them too.
    """

    members: tuple[str, ...]
    own: str


class AskWaitAnew(msgspec.Struct, frozen=True, tag="wait_anew"):
    """Wait for sources that failed the whole time again: another attempt reads from now on. Answered with `Done`."""


class AskCloseWindow(msgspec.Struct, frozen=True, tag="close_window"):
    """Record no more touches. Answered with `Done`."""


class AskStop(msgspec.Struct, frozen=True, tag="stop"):
    """Take the mount away and leave. Answered with `Done`, before it is done."""


class Touches(msgspec.Struct, frozen=True):
    """What was touched from the mount on."""

    touches: tuple[Touch, ...]
    window_s: float
    """How long the window was open, or has been until now."""


class Done(msgspec.Struct, frozen=True):
    """It was done."""

    count: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It was not."""

    reason: str


Request = AskStatus | AskTouches | AskPrefetch | AskBackground | AskPeers | AskWaitAnew | AskCloseWindow | AskStop
_Reply = TypeVar("_Reply", Status, Touches, Done)


@contextmanager
def short(path: str) -> Iterator[str]:
    """Give a name for a socket's path that fits a socket's address (107 bytes), however long the path is."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def listen(path: str, link: Callable[[str, str], None] = os.link) -> socket.socket:
    """Return a socket that listens at a path, for our user only. Raises OSError.

    It has its name only once it listens: another server that starts meanwhile removes names that nobody listens at.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = f"{path}.{secrets.token_hex(4)}.new"
    try:
        with short(new) as address:
            os.fchmod(listening.fileno(), 0o600)  # before it has a name
            listening.bind(address)
            os.chmod(address, 0o600)
        listening.listen(64)
        try:
            _name(new, path, link)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(new)
    except BaseException:
        listening.close()
        raise
    return listening


def _name(new: str, path: str, link: Callable[[str, str], None]) -> None:
    """Give a socket its name, which nobody has. Raises OSError."""
    try:
        link(new, path)
    except FileExistsError:
        raise
    except OSError:  # not all file systems know links
        if os.path.lexists(path):
            raise
        os.rename(new, path)


def hold(path: str) -> int:
    """Return a descriptor of a socket's name, with which `ask` finds the socket when its name is gone. Raises OSError."""
    return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def ask(path: str, request: Request, kind: type[_Reply], limit_s: float = 10.0, *, held: int = -1) -> _Reply:
    """Ask the server whose socket is at a path, and return its answer. `held`: of this socket, see `hold`.

    Raises `ControlFailed` where there is none, where it is silent for so long, and where it refuses.
    """
    try:
        named = short(path) if held < 0 else nullcontext(f"/proc/self/fd/{held}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, named as address:
            connection.settimeout(limit_s)
            connection.connect(address)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline(_LARGEST_LINE_BYTES)
    except OSError as error:
        raise ControlFailed(f"block server at {path}: {error.strerror or error}: see whether it runs") from error
    try:
        if line.startswith(b'{"type":"refused"'):
            raise ControlFailed(f"block server at {path}: {json_decoder(Refused).decode(line).reason}")
        return json_decoder(kind).decode(line)
    except msgspec.MsgspecError as error:
        raise ControlFailed(
            f"block server at {path}: it hung up without an answer: see its log beside the socket"
        ) from error


class Control:
    """The server's side. `carry_out` gets each request and returns what is answered; it may raise anything."""

    def __init__(
        self,
        listening: socket.socket,
        carry_out: Callable[[Request], object],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`listening`: see `listen`."""
        self._listening, self._carry_out, self._pause = listening, carry_out, pause
        self._places = threading.Semaphore(_MOST_CONNECTIONS)

    def start(self) -> None:
        """Answer from now on, in threads."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                connection, _address = self._listening.accept()
            except OSError:
                self._places.release()
                if self._listening.fileno() < 0:
                    return
                self._pause(
                    _REFUSED_PAUSE_S
                )  # no descriptors, say: who asks waits, and nothing is won by asking again at once
                continue
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_IDLE_S)
                if _peer_user(connection) in (0, os.geteuid()):
                    with connection.makefile("rb") as lines:
                        while line := lines.readline(_LARGEST_REQUEST_BYTES):
                            connection.sendall(msgspec.json.encode(self._reply(line)) + b"\n")
        except OSError:
            return  # who asked went away, or said nothing
        finally:
            self._places.release()

    def _reply(self, line: bytes) -> object:
        try:
            return self._carry_out(json_decoder(Request).decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Refused(f"the request cannot be understood: {' '.join(str(error).split())[:300]}")
        except Exception as error:  # the server goes on, also if a request fails
            return Refused(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _peer_user(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("=iII", data)[1])
