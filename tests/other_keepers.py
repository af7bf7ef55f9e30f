"""What may be at the other end of a keeper's connection: one that behaves as the test says."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

from keepers import KEY, LIMIT_S, KeeperGround

from robust_run.ckpt_io.memory import place
from robust_run.ckpt_io.memory.agent_protocol import CopyTo, Source
from robust_run.ckpt_io.memory.copies.greeting import Credentials, dial
from robust_run.ckpt_io.memory.copies.link import Link, LinkLost
from robust_run.ckpt_io.memory.copies.server import CopyServer
from robust_run.ckpt_io.memory.copies.words import Go, Kept, Later, Parcel, Push
from robust_run.store.digests import digest

OURS = Credentials(KEY)


class OtherKeeper:
    """Called by keepers under test; does what it is told with each connection."""

    def __init__(self, serve: Callable[[Link], None], ours: Credentials) -> None:
        self._listening = place.listen_at("127.0.0.1")
        self.port: int = self._listening.getsockname()[1]
        self.links: list[Link] = []
        self._is_over = False
        self._serve = serve
        self._server = CopyServer(self._listening, ours, self._attend)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            self._server.turn()

    def _attend(self, link: Link, _: int) -> None:
        self.links.append(link)
        with contextlib.suppress(LinkLost):
            self._serve(link)

    @property
    def unproven(self) -> int:
        """How many have not proved anything."""
        return len(self._server._unproven)

    def source(self, rank: int = 0) -> Source:
        return Source(rank, "127.0.0.1", self.port, "node-x")

    def order(self, attempt: int = 0) -> CopyTo:
        return CopyTo(attempt=attempt, host="127.0.0.1", port=self.port, name="node-x")

    def end(self) -> None:
        self._is_over = True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), LIMIT_S):
            self._thread.join(LIMIT_S)
        for link in self.links:
            link.cut()
        self._server.close()


@contextlib.contextmanager
def other_keeper(serve: Callable[[Link], None], ours: Credentials = OURS) -> Iterator[OtherKeeper]:
    one = OtherKeeper(serve, ours)
    try:
        yield one
    finally:
        one.end()


@contextlib.contextmanager
def linked(to: KeeperGround | OtherKeeper, ours: Credentials = OURS) -> Iterator[Link]:
    """Call a keeper as another keeper does."""
    link = dial("127.0.0.1", to.port, ours, LIMIT_S)
    try:
        yield link
    finally:
        link.close()


def push_of(content: bytes, step: int, rank: int = 0, attempt: int = 0, ranks: tuple[int, ...] = (0,)) -> Push:
    return Push(
        rank=rank,
        ranks=ranks,
        attempt=attempt,
        step=step,
        world_size=len(ranks),
        used_bytes=len(content),
        room_bytes=len(content),
        digest=digest(content),
        created_s=1.0,
        during=attempt,
        stride=1,
    )


def parcel_of(content: bytes, step: int) -> Parcel:
    push = push_of(content, step)
    return Parcel(
        attempt=0,
        step=step,
        world_size=1,
        used_bytes=push.used_bytes,
        room_bytes=push.room_bytes,
        digest=push.digest,
        created_s=1.0,
    )


def send(link: Link, content: bytes) -> None:
    """Send bytes of a part."""
    descriptor = os.memfd_create("test")
    try:
        os.write(descriptor, content)
        link.send_part(descriptor, len(content))
    finally:
        os.close(descriptor)


def push(link: Link, content: bytes, asked: Push) -> bool:
    """Push a part; whether it was kept. It waits while it is told to come later."""
    while True:
        link.send(asked)
        answer = link.receive(LIMIT_S)
        if isinstance(answer, Go):
            send(link, content)
            answer = link.receive(LIMIT_S)
        if not isinstance(answer, Later):
            return isinstance(answer, Kept)
