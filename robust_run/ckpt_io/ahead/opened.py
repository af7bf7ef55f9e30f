"""A checkpoint that is fetched ahead, once its manifest is known: its memory, what of it falls to whom, and who is asked."""

from __future__ import annotations

import socket
from collections.abc import Callable

from robust_run.ckpt_io import address
from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.area import Area, UnitTable, mark_of
from robust_run.ckpt_io.ahead.belonging import belonging
from robust_run.ckpt_io.ahead.fetching import Fetcher, FromPeer
from robust_run.ckpt_io.ahead.peers import PeerServer, PeerUnits, place_of
from robust_run.ckpt_io.ahead.words import FetchOrder
from robust_run.ckpt_io.errors import Replaced
from robust_run.ckpt_io.finding import find_manifest
from robust_run.ckpt_io.memory import budget, node_memory
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.targets import Targets
from robust_run.store.opening import open_store


class OpenedCheckpoint:
    """One checkpoint."""

    def __init__(self, order: FetchOrder, memory: int, listening: int) -> None:
        """`memory`, `listening`: descriptors, see `process`. Raises RobustRunError, OSError."""
        where = address.parse(order.url)
        primary = open_store(where.url)
        found = find_manifest(where, primary, open_store)
        if order.uuid and found.manifest.uuid != order.uuid:
            raise Replaced(order.url)
        self.manifest, self._listening = found.manifest, listening
        self._layouts = manifests.layouts(found.manifest)
        self.table = UnitTable(self._layouts)
        self.area = Area(memory, self.table, found.header)
        self.targets = Targets(where, found, primary, open_store)
        self._room_bytes = budget.room(node_memory.read(), order.limit_bytes, 0).bytes
        self._place = place_of(mark_of(found.header))

    def fetcher(self, order: FetchOrder, pace: rules.Pace) -> tuple[Fetcher, rules.FetchPlan]:
        """Return what fetches what an order wants of it, and from now on gives it to those who share."""
        plan, peers = self._shares(order)
        fetcher = Fetcher(self.area, self._layouts, self.targets, plan, pace, *_asks(peers))
        self._give(order, fetcher, peers)
        return fetcher, plan

    def go_on(self, order: FetchOrder, fetcher: Fetcher) -> rules.FetchPlan:
        """Have it go on with what another order wants, which knows who shares."""
        plan, peers = self._shares(order)
        fetcher.go_on(plan, *_asks(peers))
        self._give(order, fetcher, peers)
        return plan

    def _shares(self, order: FetchOrder) -> tuple[rules.FetchPlan, PeerUnits | None]:
        sizes, room_bytes = self.table.sizes, self._room_bytes
        belongs = belonging(self.manifest, self.table, order.ranks, order.world_size)
        if order.is_assumed:
            return rules.early(sizes, rules.Share(order.own, len(order.ranks)), room_bytes, belongs), None
        plan = rules.plan(sizes, rules.Share(order.own, max(1, len(order.peers))), room_bytes, belongs)
        if len(order.peers) < 2:
            return plan, None
        return plan, PeerUnits(self._place, order.peers, order.own, order.key, sizes, belongs=belongs)

    def _give(self, order: FetchOrder, fetcher: Fetcher, peers: PeerUnits | None) -> None:
        if peers is not None and self._listening >= 0:
            listens = socket.socket(fileno=self._listening)
            PeerServer(listens, self.area, self._place, order.key, fetcher.wait_for, peers.is_ours).start()


def _asks(peers: PeerUnits | None) -> tuple[FromPeer | None, Callable[[int], bool]]:
    return (peers.take, peers.is_ours) if peers is not None else (None, lambda _number: True)
