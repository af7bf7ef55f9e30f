"""Reads TCP connections: the other end, how many bytes have come, and for how long none has.

The kernel tells it of its own network namespace (sock_diag(7)); of other namespaces a table shows the ends, and no counts.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterable, Iterator

from robust_run.tracer.sight.links import TABLE_BYTES, sockets_of, spoken
from robust_run.tracer.wake.types import SocketReading

#: Of linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h.
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_LISTEN = 10
_INFO = 2
#: Of struct inet_diag_req_v2: what is asked for, of all states.
_REQUEST = struct.Struct("=BBBxI48x")
_HEADER = struct.Struct("=IHHII")
_MESSAGE_BYTES = 72
#: In struct tcp_info: milliseconds since data came last, and bytes that came.
_LAST_DATA_AT, _RECEIVED_AT = 52, 128
_ANSWER_BYTES = 1 << 20
_WAIT_S = 0.2


def connections(pid: int, inodes: Collection[int], root: str = "/proc") -> tuple[SocketReading, ...]:
    """Return what is known of sockets of a process, by their inodes; those that are no TCP sockets are `other`."""
    found: dict[int, SocketReading] = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6) if _is_in_our_network(pid, root) else ():
            found.update((one.inode, one) for one in _asked(family, inodes))
    except OSError:
        pass  # the kernel answers no such questions, or not us
    if len(found) < len(inodes):
        found = {**{one.inode: one for one in _from_tables(pid, inodes, root)}, **found}
    return tuple(found.get(inode, SocketReading(inode=inode, kind="other")) for inode in sorted(inodes))


def quiet_times_s(pids: Iterable[int], root: str = "/proc") -> dict[int, float]:
    """Return for how long no byte has come on any TCP connection of a process; without those that have none, or hide it."""
    near = [pid for pid in pids if _is_in_our_network(pid, root)]
    held = {pid: {int(inode) for inode in sockets_of(pid, root) if inode.isdigit()} for pid in near}
    wanted = frozenset(inode for inodes in held.values() for inode in inodes)
    found = {one.inode: one for one in connections(next(iter(held)), wanted, root)} if wanted else {}
    times_s: dict[int, float] = {}
    for pid, inodes in held.items():
        mine = [one for inode in inodes if (one := found[inode]).there]
        quiet = [one.quiet_s for one in mine if one.quiet_s is not None]
        if quiet and len(quiet) == len(mine):
            times_s[pid] = min(quiet)
    return times_s


def _is_in_our_network(pid: int, root: str) -> bool:
    try:
        return os.readlink(f"{root}/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _asked(family: int, inodes: Collection[int]) -> Iterator[SocketReading]:
    """Ask the kernel for all TCP sockets of our namespace and yield those that are wanted. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asked:
        asked.settimeout(_WAIT_S)
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0xFFFFFFFF)
        asked.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
        while True:
            answer = asked.recv(_ANSWER_BYTES)
            for kind, message in _messages(answer):
                if kind in (_DONE, _ERROR):
                    return
                if len(message) >= _MESSAGE_BYTES and int.from_bytes(message[68:72], "little") in inodes:
                    yield _connection(message)


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each message of an answer."""
    at = 0
    while at + _HEADER.size <= len(answer):
        size, kind, *_ = _HEADER.unpack_from(answer, at)
        if size < _HEADER.size:
            return
        yield kind, answer[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def _connection(message: bytes) -> SocketReading:
    """Return the socket of a struct inet_diag_msg with its attributes."""
    family, state = message[0], message[1]
    port, peer_port = struct.unpack_from(">HH", message, 4)
    size = 4 if family == socket.AF_INET else 16
    is_listening = state == _LISTEN
    received, quiet_s = _counts(message[_MESSAGE_BYTES:])
    return SocketReading(
        inode=int.from_bytes(message[68:72], "little"),
        kind="tcp",
        here=_address(family, message[8 : 8 + size], port),
        there="" if is_listening else _address(family, message[24 : 24 + size], peer_port),
        is_listening=is_listening,
        received_bytes=None if is_listening else received,
        quiet_s=None if is_listening else quiet_s,
    )


def _counts(attributes: bytes) -> tuple[int | None, float | None]:
    """Return how many bytes have come, and since when none has; older kernels do not count bytes."""
    at = 0
    while at + 4 <= len(attributes):
        size, kind = struct.unpack_from("=HH", attributes, at)
        if size < 4:
            break
        info = attributes[at + 4 : at + size]
        if kind == _INFO and len(info) >= _LAST_DATA_AT + 4:
            quiet_s = struct.unpack_from("=I", info, _LAST_DATA_AT)[0] / 1e3
            has_count = len(info) >= _RECEIVED_AT + 8
            return (struct.unpack_from("=Q", info, _RECEIVED_AT)[0] if has_count else None), quiet_s
        at += (size + 3) & ~3
    return None, None


def _address(family: int, packed: bytes, port: int) -> str:
    text = socket.inet_ntop(family, packed)
    text = text.removeprefix("::ffff:")
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def _from_tables(pid: int, inodes: Collection[int], root: str) -> Iterator[SocketReading]:
    """Yield the wanted rows of the tables of a process's network namespace."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{root}/{pid}/net/{name}", "rb") as file:
                rows = file.read(TABLE_BYTES).decode("ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            if len(words) < 10 or not words[9].isdigit() or int(words[9]) not in inodes:
                continue
            is_listening = words[3] == "0A"
            yield SocketReading(
                inode=int(words[9]),
                kind="tcp",
                here=spoken(*words[1].split(":")),
                there="" if is_listening else spoken(*words[2].split(":")),
                is_listening=is_listening,
            )
