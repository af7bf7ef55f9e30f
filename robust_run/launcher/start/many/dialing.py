"""Dialling a controller: the addresses of a place, one after the other, with the job's token."""

from __future__ import annotations

import socket

import msgspec

from robust_run import tls
from robust_run.clock import Clock
from robust_run.launcher.control.client import Connection, dial
from robust_run.launcher.control.errors import JoinRefusal
from robust_run.launcher.control.meeting import Guest, Host
from robust_run.launcher.control.messages import Hello
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.lease_times import LeaseTimes
from robust_run.launcher.start.many.fence import Lease
from robust_run.launcher.start.many.finding import DIAL_S, ONLY_DIAL_S


class Dialing:
    """What a node needs to call a controller of its job."""

    def __init__(self, many: ManyNodes, token: str, clock: Clock, lease: Lease) -> None:
        self._many = many
        self._token = token.encode()
        self._clock = clock
        self._lease = lease
        is_secret = many.tls_cert or many.tls_ca
        self._context = tls.client_context(many.tls_cert, many.tls_key, many.tls_ca) if is_secret else None

    async def dial(self, place: Host | Guest, hello: Hello) -> Connection:
        """Return a connection to the first address that answers; the lease counts from there. Raises as `client.dial` does."""
        if not place.addresses and not isinstance(place, Host):
            raise OSError(f"{self._many.host} cannot be resolved")
        error: Exception = ConnectionRefusedError(f"{self._many.host} has no address yet")
        for address in place.addresses:
            try:
                return await self._dial_one(address, place.port, hello)
            except (OSError, TimeoutError) as failure:
                if isinstance(error, ConnectionRefusedError):  # proves nothing as long as another address is silent
                    error = failure
        raise error

    async def _dial_one(self, host: str, port: int, hello: Hello) -> Connection:
        sent_at_s = self._clock.monotonic_s()
        patience_s = DIAL_S if self._many.controller_standby else ONLY_DIAL_S
        connection = await dial(host, port, self._token, hello, ssl_context=self._context, timeout_s=patience_s)
        self._lease.times = LeaseTimes(connection.welcome.lease_s)
        self._lease.renew(sent_at_s)
        return connection

    async def ask_setup(self, guest: Guest, hello: Hello) -> bytes | None:
        """Ask a controller which snapshot the job has, without joining; None: there is no controller yet. Raises JoinRefusal."""
        hello = msgspec.structs.replace(hello, asks_setup=True)
        for address in guest.addresses:
            try:
                connection = await dial(
                    address, guest.port, self._token, hello, ssl_context=self._context, timeout_s=ONLY_DIAL_S
                )
            except JoinRefusal as refusal:
                if refusal.final:
                    raise
            except (OSError, TimeoutError):
                continue
            else:
                connection.close()
                return connection.welcome.setup
        return None


def own_name(spec: JobSpec) -> str:
    """Return what this node is called: as Slurm or --node-name calls it, else its host name."""
    given = spec.many.node_name if spec.many is not None else ""
    return spec.slurm.node_name if spec.slurm is not None else given or socket.gethostname()


def guest_at(where: str) -> Guest:
    """Return HOST:PORT as a place to dial."""
    host, _, port = where.rpartition(":")
    return Guest(addresses=(host.strip("[]"),), port=int(port))
