"""Which TCP connections of processes are stuck: the kernel sends their data again and again, and no peer acknowledges it.

The kernel shows all connections of a network namespace in one table (proc_pid_net(5): `net/tcp`, `net/tcp6`), which is read once
for all processes that share the namespace. A connection is stuck if it is established, its retransmission timer runs and has
fired before. A peer that does not read is something else: its kernel acknowledges, and another timer probes its window.
What was stuck at the first look only, or has made progress since, is not reported: a network that loses packets recovers.

All reads go below a folder `root` that looks like /proc. What cannot be read is left out.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable
from itertools import islice

from robust_run.tracer.sight.processes import DESCRIPTORS
from robust_run.tracer.types import StuckConnection

#: Of one table: about 27,000 connections.
TABLE_BYTES = 4 << 20
#: Stuck connections of one table, and of one process in a report.
STUCK = 1024
LINKS = 32
#: Network namespaces that the processes of a node may have; usually it is one.
NAMESPACES = 16

#: State 01: established. Timer 01: it waits for an acknowledgement.
_ROW = re.compile(
    rb"^ *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) 01 "
    rb"([0-9A-F]{8}):[0-9A-F]{8} 01:[0-9A-F]{8,16} ([0-9A-F]{8}) +\d{1,10} +\d{1,10} (\d{1,20}) ",
    re.MULTILINE,
)
_MAPPED = bytes(10) + b"\xff\xff"


class StuckConnections:
    """The stuck connections of some processes while they are looked at: `sample` at the beginning and at the end, then `of`."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._namespaces: dict[int, str] = {}
        self._stuck: dict[str, dict[str, StuckConnection]] = {}
        """By namespace, then inode."""
        self._samples = 0

    def sample(self, pids: Iterable[int]) -> None:
        """Read the tables of the processes' network namespaces; keep what has been stuck since the sample before."""
        names: dict[str, int] = {}
        for pid in pids:
            names.setdefault(self._namespace(pid), pid)
        names.pop("", None)
        if not self._samples:
            self._stuck = {name: stuck(pid, self._root) for name, pid in islice(names.items(), NAMESPACES)}
        else:
            # A table takes the kernel milliseconds; where nothing was stuck there is nothing to compare with.
            before = {name: then for name, then in self._stuck.items() if then and name in names}
            self._stuck = {name: _still(then, stuck(names[name], self._root)) for name, then in before.items()}
        self._samples += 1

    def of(self, pid: int) -> tuple[StuckConnection, ...]:
        """Return the stuck connections that a process holds, the most stuck first, at most `LINKS`."""
        known = self._stuck.get(self._namespaces.get(pid, ""))
        if not known:
            return ()  # nearly always; the descriptors need not be searched
        held = [known[inode] for inode in sockets_of(pid, self._root) & known.keys()]
        return tuple(sorted(held, key=lambda link: (-link.retries, link.here, link.there))[:LINKS])

    def _namespace(self, pid: int) -> str:
        try:
            self._namespaces[pid] = os.readlink(f"{self._root}/{pid}/ns/net")
        except OSError:
            self._namespaces.pop(pid, None)
        return self._namespaces.get(pid, "")


def stuck(pid: int, root: str = "/proc") -> dict[str, StuckConnection]:
    """Return the stuck connections of a process's network namespace, by inode, at most `STUCK` of each kind."""
    found: dict[str, StuckConnection] = {}
    for name in ("tcp", "tcp6"):
        found.update(parse(_table(f"{root}/{pid}/net/{name}")))
    return found


def parse(table: bytes) -> dict[str, StuckConnection]:
    """Return the stuck connections in the text of a table, by inode; rows that no kernel writes are skipped."""
    found: dict[str, StuckConnection] = {}
    for row in islice(_ROW.finditer(table), STUCK):
        here, here_port, there, there_port, unsent, retries, inode = (part.decode() for part in row.groups())
        link = StuckConnection(
            here=spoken(here, here_port),
            there=spoken(there, there_port),
            unsent_bytes=int(unsent, 16),
            retries=int(retries, 16),
        )
        if link.unsent_bytes and link.retries:
            found[inode] = link
    return found


def _still(before: dict[str, StuckConnection], now: dict[str, StuckConnection]) -> dict[str, StuckConnection]:
    """Return those that were stuck before and have got nothing through since."""
    kept: dict[str, StuckConnection] = {}
    for inode, link in now.items():
        then = before.get(inode)
        same = then is not None and (then.here, then.there) == (link.here, link.there)
        if then is not None and same and link.retries >= then.retries and link.unsent_bytes >= then.unsent_bytes:
            kept[inode] = link
    return kept


def sockets_of(pid: int, root: str) -> set[str]:
    """Return the inodes of the sockets that a process holds."""
    found: set[str] = set()
    try:
        with os.scandir(f"{root}/{pid}/fd") as entries:
            for entry in islice(entries, DESCRIPTORS):
                target = _target(entry.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    except OSError:
        return found  # gone, or not ours
    return found


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _table(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(TABLE_BYTES)
    except OSError:
        return b""


def spoken(address: str, port: str) -> str:
    """Write an end of a connection as people do. The kernel prints addresses as words of 4 bytes in its own order."""
    words = (address[at : at + 8] for at in range(0, len(address), 8))
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    packed = packed.removeprefix(_MAPPED) if len(packed) == 16 else packed
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"
