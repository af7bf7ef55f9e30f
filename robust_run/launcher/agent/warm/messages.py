"""Messages between agent, warm process and standby workers, one message a packet of a Unix socket.

agent ── MakeStandby + socket ──► warm process ── forks ──► standby worker
agent ◄─ Preloaded | Refused ──── warm process
agent ◄─ StandbyReady ─────────────────────────────────── standby worker
agent ── Promote + stdin, stdout, stderr ───────────────► standby worker
agent ◄─ Promoted | CannotPromote ─────────────────────── standby worker, then the user's program runs
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from robust_run.launcher.agent.warm.identity import Identity

#: Largest message: an environment of a few hundred kilobytes fits.
LARGEST_BYTES = 4 << 20


class MakeStandby(msgspec.Struct, frozen=True, tag="make_standby"):
    """Fork a standby worker; its end of a socket comes with the message."""

    slot: int


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """Import these modules too, for standby workers made from now on."""

    modules: tuple[str, ...]


class Preloaded(msgspec.Struct, frozen=True, tag="preloaded", kw_only=True):
    """The modules are imported, the process is fit to be forked, and a canary has lived."""

    modules: tuple[str, ...]
    took_s: float
    skipped: tuple[str, ...] = ()
    """Modules left out, each with its reason."""


class WarmStartRefused(msgspec.Struct, frozen=True, tag="refused"):
    """This process must not be forked (any more); it ends."""

    reason: str
    modules: tuple[str, ...] = ()
    """The preloaded modules that did it, if some did: those of one package (see `known.batches`)."""

    @property
    def module(self) -> str:
        """What to call them."""
        return self.modules[0] if len(self.modules) == 1 else "".join(self.modules[:1]).partition(".")[0]


class StandbyReady(msgspec.Struct, frozen=True, tag="standby_ready", kw_only=True):
    """A standby worker waits; it is the agent's child by now."""

    pid: int


class Promote(msgspec.Struct, frozen=True, tag="promote", kw_only=True):
    """Become this worker; its stdin, stdout and stderr come with the message."""

    identity: Identity


class Promoted(msgspec.Struct, frozen=True, tag="promoted"):
    """The user's program starts now."""


class CannotPromote(msgspec.Struct, frozen=True, tag="cannot_promote"):
    """Something of the identity could not be taken on; the standby worker ends without having run anything."""

    reason: str


ToWarm = MakeStandby | Preload
FromWarm = Preloaded | WarmStartRefused
FromStandby = StandbyReady | Promoted | CannotPromote


def packet_socketpair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair that keeps messages apart and says when the other end is gone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        # An environment in a Promote must fit one packet; the kernel doubles this and caps it at what it allows.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST_BYTES)
    return ours, theirs


def send(sock: socket.socket, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
    """Send a message. Raises OSError, also if it is larger than the socket takes."""
    data = msgspec.json.encode(message)
    if descriptors:
        socket.send_fds(sock, [data], list(descriptors))
    else:
        sock.send(data)
