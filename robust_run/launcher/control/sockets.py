"""Socket options of control connections, and how many sockets a process may have."""

from __future__ import annotations

import contextlib
import resource
import socket

KEEPALIVE_IDLE_S = 10
KEEPALIVE_EVERY_S = 5
KEEPALIVE_TIMES = 3
UNACKNOWLEDGED_MS = 30_000
"""Data that the other machine does not acknowledge for so long ends the connection."""


TCP_THIN_LINEAR_TIMEOUTS = 16
"""Of Linux: a lost message is sent again every 0.2 s for a while, rather than later and later. Else a heartbeat may arrive a
second and a half after the cable is back, which may be after the end of the lease."""


def tune(connection: socket.socket) -> None:
    """Send small messages at once, and notice a machine that is gone. Does nothing to a socket that is not TCP."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TIMES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)


def spoken(host: str, port: int) -> str:
    """Return HOST:PORT as people write it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_connected_to_itself(connection: socket.socket) -> bool:
    """Whether both ends are the same socket: TCP allows that to who dials a free local port and happens to dial from it."""
    return bool(connection.getsockname() == connection.getpeername())


def raise_file_limit() -> int:
    """Let this process open as many files as it may, and return how many: a controller needs one for each agent.

    Processes it starts inherit that, and a program that uses select() cannot have files above 1024: so not in an agent.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
