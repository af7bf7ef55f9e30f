"""Where the leader of a job of several roles listens, and the file that says so to workers and commands."""

from __future__ import annotations

import socket

import msgspec

from robust_run.atomic_file import write_file
from robust_run.orchestrator.connection import context_of
from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.server import RoleServer
from robust_run.roles.client import Place

LOOPBACK = "127.0.0.1"


def hold(*ports: int) -> socket.socket:
    """Return what listens at the first of these ports that is free, at all addresses of this machine. Raises OSError: none is."""
    for number, port in enumerate(ports, 1):
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True)
            return socket.create_server(("", port), backlog=512)
        except OSError:
            if number == len(ports):
                raise
    raise ValueError("no port was named")


def is_taken(port: int, why: str) -> str:
    """Return what is said of a port where nodes were to meet."""
    return (
        f"port {port} of this machine, where the nodes are to meet, cannot be listened on ({why}); give all nodes an endpoint"
        " with another one"
    )


def place_of(path: str) -> Place | None:
    """Return where an orchestrator listens, or did; None: there is no such file that can be read."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Place)
    except (OSError, msgspec.MsgspecError):
        return None


async def open_place(
    server: RoleServer,
    path: str,
    roles: tuple[str, ...],
    several: Several | None,
    before: Place | None,
    listener: socket.socket | None = None,
) -> None:
    """Listen, and write down where: as the earlier leader did (`before`), if possible, because workers look there first.

    `listener`: where the nodes of a job of several meet; the guard holds it. Raises OSError.
    """
    if listener is not None:
        port = await server.listen_at(listener, context_of(several.tls if several is not None else None))
    else:
        try:
            port = await server.listen(LOOPBACK, before.port if before is not None else 0)
        except OSError:
            if before is None:
                raise
            port = await server.listen(LOOPBACK)
    place = Place(
        address=LOOPBACK,
        port=port,
        secret=server.secret,
        roles=roles,
        tls=several.tls if several is not None else None,
    )
    if place == before:
        return  # it is written already, and a disk that is full by now keeps nobody from leading
    write_file(path, msgspec.json.encode(place), mode=0o600)
