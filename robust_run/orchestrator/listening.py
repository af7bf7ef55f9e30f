"""Where the leader of a job of several roles listens, and the file that says so to workers and commands."""

from __future__ import annotations

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError
from robust_run.orchestrator.connection import context_of
from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.server import RoleServer
from robust_run.roles.client import Place

LOOPBACK = "127.0.0.1"


def place_of(path: str) -> Place | None:
    """Return where an orchestrator listens, or did; None: there is no such file that can be read."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Place)
    except (OSError, msgspec.MsgspecError):
        return None


async def open_place(
    server: RoleServer, path: str, roles: tuple[str, ...], several: Several | None, before: Place | None
) -> None:
    """Listen, and write down where: as the earlier leader did (`before`), if possible, because workers look there first.

    Raises PlatformError where the nodes of a job of several cannot meet here, OSError.
    """
    if several is not None:
        try:
            port = await server.listen(None, several.port, context_of(several.tls))
        except OSError as error:
            raise PlatformError(
                f"port {several.port} of this machine, where the nodes are to meet, cannot be listened on"
                f" ({error.strerror}); give all nodes an endpoint with another one"
            ) from error
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
