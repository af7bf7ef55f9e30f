"""The block servers of a place on this node, and the other nodes that they share blocks with.

A place has two at most: of its image, then of the set-up that is laid over it. A node says where they give blocks in one text, in
this order: `HOST:PORT,HOST:PORT`, with nothing in the place of one that there is not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from robust_run.errors import RobustRunError

if TYPE_CHECKING:
    from robust_run.mounts.holding import HolderReady
    from robust_run.prefetch.peers.types import PeerOptions

#: How long nothing is fetched ahead while it is not known from which other nodes it could come.
MEMBERS_WAIT_S = 30.0
_ASK_S = 10.0


def peers_of(token: str) -> PeerOptions:
    """Return how nodes of a job share blocks; with whom, they hear when they have joined. `token`: of the job."""
    from robust_run.prefetch.peers.types import PeerOptions, token_of

    return PeerOptions(token=token_of(token), members_wait_s=MEMBERS_WAIT_S)


def ports_of(ready: HolderReady) -> tuple[int, ...]:
    """Return where the servers give blocks to other nodes, 0 where there is none. Raises `ControlFailed`."""
    return tuple(map(_port, (ready.control_path, ready.laid_control_path)))


def _port(control_path: str) -> int:
    from robust_run.prefetch.rules.types import Status
    from robust_run.prefetch.server import control

    peers = control.ask(control_path, control.AskStatus(), Status, _ASK_S).peers if control_path else None
    return peers.port if peers is not None else 0


def told(ready: HolderReady, peers: Sequence[str], own: str) -> list[tuple[str, tuple[str, ...], str]]:
    """Return what is said to which server: its control socket, the nodes that give blocks of the same, and who we are. Pure."""
    found = []
    for index, path in enumerate((ready.control_path, ready.laid_control_path)):
        members = tuple(filter(None, (_part(each, index) for each in peers)))
        if path and members and _part(own, index):
            found.append((path, members, _part(own, index)))
    return found


def _part(text: str, index: int) -> str:
    parts = text.split(",")
    return parts[index] if index < len(parts) else ""


class Telling:
    """What block servers of a node were told of other nodes. Lists follow each other fast; the newest holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0

    def tell(self, ready: HolderReady, peers: Sequence[str], own: str) -> None:
        """Have the servers share with these nodes from now on. Returns at once, raises nothing: else the origin is asked."""
        said = told(ready, peers, own)
        if said:
            self._newest += 1
            threading.Thread(target=self._ask, args=(said, self._newest), daemon=True).start()

    def _ask(self, said: Sequence[tuple[str, tuple[str, ...], str]], number: int) -> None:
        from robust_run.prefetch.server import control

        with self._lock:
            if number < self._newest:
                return
            for path, members, own in said:
                with suppress(RobustRunError):
                    control.ask(path, control.AskPeers(members, own), control.Done, _ASK_S)
