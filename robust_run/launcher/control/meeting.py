"""Rendezvous: the controller is hosted by the node that can listen where the nodes meet.

Host names are not compared, where that can be helped.

An address can be listened on only by the machine that has it, and only once. So every node tries, and whoever succeeds is
the host; "in use" means that somebody on this machine was faster, "not available" that it is another machine's.

Two things need care. A machine's own name often leads to a loopback address (Debian's 127.0.1.1), where no other machine
can reach it: then the host listens on all interfaces. And a name may not lead anywhere yet, when a cluster has just made
the machine: then, and only then, names are compared.

A guest that was never let in by a controller calls `meet` again when it cannot connect: names appear, ports become free.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Protocol

import msgspec

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.job import ManyNodes

ALL_V4 = "0.0.0.0"  # noqa: S104 - for a host whose address is not its own, as behind a service of Kubernetes
ALL_V6 = "::"
"""All interfaces; with IPv6 those of IPv4 too."""
LOOPBACK = ("127.0.0.1", "::1")

_BACKLOG = 65_535
"""The kernel cuts it to net.core.somaxconn: thousands of nodes may dial at once."""
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.ENODEV, errno.EPROTONOSUPPORT)


class Network(Protocol):
    """What is asked of the network. Addresses are numeric."""

    def host_name(self) -> str:
        """This machine's name."""
        ...

    def resolve(self, host: str) -> Sequence[str]:
        """Return the addresses of a name, in any order; none if it leads nowhere (yet). May block for seconds."""
        ...

    def listen(self, address: str, port: int) -> socket.socket:
        """Return a listening socket. Raises OSError."""
        ...

    def address_towards(self, address: str) -> str:
        """Return this machine's address on the way to another one. Sends nothing. Raises OSError."""
        ...


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """This node hosts the controller, which is to accept on this socket."""

    socket: socket.socket
    address: str
    """What the socket is bound to; `ALL_V4` or `ALL_V6`: all interfaces."""
    port: int
    addresses: tuple[str, ...]
    """Where the agent of this node reaches it."""


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """The controller is somewhere else, or another process's on this machine."""

    addresses: tuple[str, ...]
    """Where to dial, in this order; empty: the name leads nowhere yet."""
    port: int


def meet(many: ManyNodes, network: Network) -> Host | Guest:
    """Become the host, at the first of the job's ports that is free, or return where the host is.

    Raises UserError if this node must be the host and cannot, PlatformError if the machine refuses a socket.
    """
    addresses = in_order(network.resolve(many.host))
    guest = Guest(addresses=addresses, port=many.port)
    if many.is_host is False:
        return guest
    if many.is_host and many.more_ports:
        for port in (many.port, *many.more_ports[:-1]):
            try:
                host = _become_host(msgspec.structs.replace(many, port=port), addresses, network)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise _refusal(many, error) from error
            if host is not None:
                return host
        many = msgspec.structs.replace(many, port=many.more_ports[-1])
    if not addresses and not many.is_host and not _is_own_name(many.host, network.host_name()):
        return guest
    try:
        return _become_host(many, addresses, network) or guest
    except OSError as error:
        if error.errno == errno.EADDRINUSE and not many.is_host:
            return Guest(addresses=addresses or LOOPBACK, port=many.port)
        raise _refusal(many, error) from error


def own_address(many: ManyNodes, place: Host | Guest, network: Network, controller: str = "") -> str:
    """Return where workers of other nodes reach workers of this one.

    `controller` is the address at which a guest reached the controller; for the host it says nothing.
    Where the controller is on this machine, workers are reached as it is: by its own address if it has one, else by name.
    """
    if many.local_addr:
        return many.local_addr
    if isinstance(place, Host) and place.address not in (ALL_V4, ALL_V6):
        return place.address
    reached = isinstance(place, Guest) and controller
    for address in (controller,) if reached else in_order(network.resolve(many.host)):
        if is_loopback(address) and not _means_loopback(many.host):
            continue  # true on this machine only
        try:
            return network.address_towards(address)
        except OSError:
            continue
    return many.host


def in_order(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return addresses, each once, in an order that is the same on every node: loopback last, IPv6 after IPv4.

    Name servers rotate the addresses of a name; nodes that took the first one they saw would meet in several places.
    """
    return tuple(sorted(set(addresses), key=lambda address: (is_loopback(address), ":" in address, _packed(address))))


def is_loopback(address: str) -> bool:
    """Whether a numeric address leads to the machine that uses it."""
    return address.startswith(("127.", "::ffff:127.")) or address == "::1"


def _become_host(many: ManyNodes, addresses: tuple[str, ...], network: Network) -> Host | None:
    """Return the host, None if the addresses are another machine's. Raises OSError.

    Only the first address of each family counts: where a name means several machines, one of them is chosen.
    """
    usable = [address for address in addresses if _means_loopback(many.host) or not is_loopback(address)]
    if usable:
        for address in _first_of_each_family(usable):
            try:
                listening = network.listen(address, many.port)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
            else:
                return Host(socket=listening, address=address, port=many.port, addresses=(address,))
        if not many.is_host:
            return None
    listening, address = _listen_on_all(many.port, network)
    return Host(socket=listening, address=address, port=many.port, addresses=LOOPBACK)


def _first_of_each_family(addresses: Sequence[str]) -> list[str]:
    v4 = [address for address in addresses if ":" not in address]
    v6 = [address for address in addresses if ":" in address]
    return [*v4[:1], *v6[:1]]


def _listen_on_all(port: int, network: Network) -> tuple[socket.socket, str]:
    try:
        return network.listen(ALL_V6, port), ALL_V6
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
    return network.listen(ALL_V4, port), ALL_V4


def _refusal(many: ManyNodes, error: OSError) -> UserError | PlatformError:
    where = f"{many.host}:{many.port}"
    if error.errno == errno.EADDRINUSE:
        return UserError(f"this node shall host the controller at {where}, but the port is taken; choose another port")
    if error.errno == errno.EACCES:
        return UserError(f"this user may not listen at {where}; choose a port from 1024 to 65535")
    return PlatformError(f"cannot listen at {where}: {error.strerror or error}")


def _means_loopback(host: str) -> bool:
    """Whether a host, as typed, is meant to be the machine itself: all nodes are on one."""
    return is_loopback(host) or host.lower().partition(".")[0] in ("localhost", "ip6-localhost")


def _is_own_name(host: str, own: str) -> bool:
    """Whether a name that leads nowhere is this machine's, be one of the two with its domain and the other without."""
    wanted, mine = host.lower().rstrip(".").split("."), own.lower().rstrip(".").split(".")
    shorter = min(len(wanted), len(mine))
    return wanted == mine or (shorter == 1 and wanted[0] == mine[0] != "")


def _packed(address: str) -> bytes:
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address.partition("%")[0])
    except OSError:
        return address.encode()


class SystemNetwork:
    """The machine's own network."""

    def host_name(self) -> str:
        """See `Network`."""
        return socket.gethostname()

    def resolve(self, host: str) -> Sequence[str]:
        """See `Network`."""
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return ()
        return tuple(dict.fromkeys(str(place[0]) for _, _, _, _, place in found))

    def listen(self, address: str, port: int) -> socket.socket:
        """See `Network`."""
        listening = socket.socket(_family(address), socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if listening.family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address != ALL_V6)
            listening.bind(_place(address, port))
            if self._may_bind_any() and not self._has(address):
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening

    def address_towards(self, address: str) -> str:
        """See `Network`."""
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            probe.connect(_place(address, 9))  # for a datagram this only looks up the route
            return str(probe.getsockname()[0])

    @staticmethod
    def _may_bind_any() -> bool:
        """Whether this machine lets programs listen on addresses that are not its own (as load balancers want)."""
        for family in ("ipv4", "ipv6"):
            try:
                with open(f"/proc/sys/net/{family}/ip_nonlocal_bind", encoding="ascii") as file:
                    if file.read().strip() == "1":
                        return True
            except OSError:
                continue
        return False

    def _has(self, address: str) -> bool:
        if address in (ALL_V4, ALL_V6) or is_loopback(address):
            return True
        try:
            return self.address_towards(address).partition("%")[0] == address.partition("%")[0]
        except OSError:
            return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _place(address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return an address as the socket module wants it; a scope (`%eth0`) becomes a number. Raises OSError."""
    bare, _, scope = address.partition("%")
    if ":" not in address:
        return bare, port
    return bare, port, 0, (int(scope) if scope.isdigit() else socket.if_nametoindex(scope)) if scope else 0
