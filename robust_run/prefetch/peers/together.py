"""Peers in a block server: the sources it asks, and what it gives, in one object."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from robust_run.errors import UserError
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.fetching.sources import BlockSource
from robust_run.prefetch.peers.origin import Origin
from robust_run.prefetch.peers.source import PeerSource
from robust_run.prefetch.peers.types import SHORTEST_TOKEN, Fetches, PeerCounts, PeerOptions, split_address
from robust_run.prefetch.rules.types import BlockMap, FetchLimits


def listen(options: PeerOptions) -> socket.socket:
    """Return a socket where peers can ask. The keeper holds it, so a server that is replaced keeps its address.

    Raises `UserError` for options that cannot be, OSError where the address is taken.
    """
    if len(options.token) < SHORTEST_TOKEN or not options.token.isascii() or not options.token.isprintable():
        raise UserError(
            f"the peers' token has {len(options.token)} characters; {SHORTEST_TOKEN} or more plain ones are needed"
        )
    if not 1 <= options.origins <= 64:
        raise UserError(f"{options.origins} nodes cannot fetch the same blocks from the origin; 1 to 64 can")
    try:
        host, port = split_address(options.bind)
    except ValueError as error:
        raise UserError(f"peers: {error}") from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=False)


class Together:
    """What sharing adds to a block server."""

    def __init__(
        self, block_map: BlockMap, options: PeerOptions, limits: FetchLimits, listening: socket.socket
    ) -> None:
        self._map, self._options, self._listening = block_map, options, listening
        self.source = PeerSource(block_map, options, limits)
        self._sent_bytes: Callable[[], int] = lambda: 0
        self._stop: Callable[[], None] = lambda: None

    def sources(self, origin: BlockSource) -> Sequence[BlockSource]:
        """Return the sources of a server, the preferred first."""
        return self.source, Origin(origin, self.source)

    def meet(self, members: Sequence[str], own: str) -> int:
        """Share with these from now on; return how many they are."""
        self.source.meet(members, own)
        return self.source.members

    def start(self, cache: Cache, fetcher: Fetches) -> None:
        """Give blocks from now on."""
        from robust_run.prefetch.peers.serving import PeerServer

        server = PeerServer(self._listening, self._map, cache, self.source, self._options, fetcher)
        self._sent_bytes = lambda: server.sent_bytes
        server.start()
        self._stop = server.stop

    def close(self) -> None:
        """Ask no peer any more, and give none anything. Once."""
        self.source.close()
        self._stop()

    def counts(self) -> PeerCounts:
        """Return what came of it so far."""
        source = self.source
        return PeerCounts(
            port=self._listening.getsockname()[1],
            members=source.members,
            sent_bytes=self._sent_bytes(),
            received_bytes=source.received_bytes,
            wrong_blocks=source.wrong_blocks,
            failures=source.failures,
            redirected=source.redirected,
            problems=tuple(source.problems),
        )
