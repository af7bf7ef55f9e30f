"""The socket of a keeper: in a folder whose path may be longer than a socket's address can be."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator

from robust_run.ckpt_io.memory.protocol import SOCKET

#: Between the socket's name and its listening there is no time to speak of.
_LISTENS_WITHIN_S, _AGAIN_S = 0.5, 0.01


@contextlib.contextmanager
def _address(folder: str) -> Iterator[str]:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def listen(folder: str) -> socket.socket:
    """Return a socket that listens in a folder; one that a dead keeper left there is replaced.

    Raises:
        OSError: The folder is not there, or others than our user may look into it.
    """
    found = os.stat(folder)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(
            f"{folder} has mode {stat.S_IMODE(found.st_mode):o}, user {found.st_uid}: only we may use it"
        )
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(folder) as address:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            listening.bind(address)
        listening.listen(512)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def listen_at(address: str) -> socket.socket:
    """Return a socket that keepers of other nodes can call at, at some port of an address. Raises OSError."""
    family, kind, protocol, _, at = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.bind(at)
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    return listening


def connect(folder: str, timeout_s: float) -> socket.socket:
    """Return a connection to the keeper in a folder.

    It is waited for: the first workers of a job are started before it. One that was there and is gone is not. Raises OSError.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return _connect(folder, max(0.001, until_s - time.monotonic()))
        except FileNotFoundError:
            if time.monotonic() >= until_s:
                raise
        except ConnectionRefusedError:  # dead, or just about to listen
            if time.monotonic() >= min(until_s, until_s - timeout_s + _LISTENS_WITHIN_S):
                raise
        time.sleep(_AGAIN_S)


def _connect(folder: str, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with _address(folder) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def remove(folder: str) -> None:
    """Remove the socket."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, SOCKET))


def is_ours(connection: socket.socket) -> bool:
    """Whether our user is at the other end."""
    try:
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        return False
    return int(user) == os.geteuid()
