"""What an attempt starts from, fetched ahead: the agent has a process bring it from its URL while workers import.

It begins with the order to start, just before the workers; where their image or set-up is brought first, beside that, with the
newest checkpoint there is (`early`). It is over with the first step on this node: then all ranks have loaded, and the
memory is theirs. One that was begun for another checkpoint is ended at once; one for the same goes on, also over a restart. It is
a hint: whatever fails here, ranks read from the store. Imported where a job starts from a URL.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from robust_run.ckpt_io.ahead.words import BACKLOG, SOCKET_ENDING, FetchNews, FetchOrder, FetchPace
from robust_run.errors import RobustRunError
from robust_run.launcher.agent.checkpoint.choosing import LOOKING, NOBODY, AssumedShare, Readers, next_step
from robust_run.launcher.agent.checkpoint.sharing import CheckpointSharing
from robust_run.launcher.model.resume_events import ResumePoint
from robust_run.store import turn_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.report.startup.types import Fetch

Listen = Callable[[socket.socket, "Callable[[], None] | None"], None]
_MOST_READ_BYTES = 1 << 16
#: The job's secret, and what is said to workers.
_NOT_ITS_BUSINESS = frozenset(("ROBUST_TOKEN", "ROBUST_NOTIFY", "ROBUST_CKPT_MEMORY", "ROBUST_RESUME"))


class StartsHelpers(Protocol):
    """Starts a child process of the agent that dies with it; returns its pid."""

    def __call__(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        """Start `argv` with the descriptors in `keep` open. Raises RobustRunError, OSError."""
        ...


class CheckpointAhead:
    """One agent's. Used from its thread."""

    def __init__(
        self,
        start: StartsHelpers,
        env: Mapping[str, str],
        say: Callable[[str], None],
        limit_bytes: int | None = None,
        rate_bytes_s: float | None = None,
        sharing: CheckpointSharing | None = None,
        folder: str = "",
    ) -> None:
        """`folder`: of this job on this node, in which workers of an image find a socket; empty: they run where we do."""
        self._folder, self._sockets = folder, 0
        self._start, self._env, self._say = start, env, say
        self._limit_bytes, self._rate_bytes_s, self._sharing = limit_bytes, rate_bytes_s, sharing
        self._socket: socket.socket | None = None
        """None: no process runs, as far as is known."""
        self._listen: Listen | None = None
        self._came = bytearray()
        self._uuid = self._place = ""
        self._has_said = False
        self._is_untold = False
        """What is fetched was begun before an attempt was told what it starts from."""
        self._unbound: socket.socket | None = None
        self.news: FetchNews | None = None
        """The newest of what is fetched, or of what was fetched last; None: nothing ever was."""

    def settle(self, sharing: CheckpointSharing | None, folder: str) -> None:
        """This node has a part in a job: with whom it shares, and the folder that `__init__` tells of."""
        self._sharing, self._folder = sharing, folder or self._folder

    def attach(self, listen: Listen) -> None:
        """Hear how it goes as it does, from now on."""
        self._listen = listen
        if self._socket is not None:
            listen(self._socket, self._read)

    def begin_early(self, folder: str, assumed: AssumedShare | None = None, port: int = -1) -> None:
        """Begin the newest checkpoint of a folder, a URL: before an attempt is told what it starts from.

        `assumed`: of a node of several, which can be asked at `port`, a listening descriptor, when it knows the others.
        """
        limit_bytes, rate_bytes_s = self._limit_bytes, self._rate_bytes_s
        order = FetchOrder(url=folder, uuid="", is_folder=True, limit_bytes=limit_bytes, rate_bytes_s=rate_bytes_s)
        self._is_untold = True
        if assumed is None:
            self._open(order, -1)
            return
        ranks = tuple((each * assumed.nproc, assumed.nproc) for each in range(assumed.nodes))
        order = msgspec.structs.replace(
            order, is_assumed=True, own=assumed.own, ranks=ranks, world_size=assumed.nodes * assumed.nproc
        )
        if assumed.has_place:
            self._unbound = socket.socket(socket.AF_UNIX)  # it is given a name when its folder is known
        self._open(order, port)

    def begin(self, point: ResumePoint | None, url: str, readers: Readers = NOBODY) -> str:
        """Begin what an attempt starts from; return where its workers find it, empty: nowhere."""
        self._read()
        step = next_step(self._running, point, url)
        if (step == "tell" or (step == "go_on" and self._is_untold)) and point is not None:
            self._uuid, self._is_untold = point.uuid, False
            self._name_unbound()
            self._send(self._order_for(point, url, readers))
        if step in ("end", "begin"):
            self.end()
        if step == "begin" and point is not None:
            order = self._order_for(point, url, readers)
            self._open(order, self._sharing.listening.fileno() if self._sharing is not None and order.peers else -1)
        return self._place if self._socket is not None else ""

    def _order_for(self, point: ResumePoint, url: str, readers: Readers) -> FetchOrder:
        order = FetchOrder(url=url, uuid=point.uuid, limit_bytes=self._limit_bytes, rate_bytes_s=self._rate_bytes_s)
        order = msgspec.structs.replace(order, world_size=readers.world_size, ranks=(readers.own,))
        sharing, nodes = self._sharing, readers.nodes
        if sharing is None or sharing.own not in nodes or len(nodes) < 2:
            return order
        own = nodes.index(sharing.own)
        return msgspec.structs.replace(order, peers=nodes, ranks=readers.ranks, own=own, key=sharing.key)

    def _new_place(self) -> str:
        self._sockets += 1
        return os.path.join(self._folder, f"ahead-{self._sockets}{SOCKET_ENDING}")

    def _name_unbound(self) -> None:
        """Let workers find the socket that the process has had since before the job had a folder."""
        unbound, self._unbound = self._unbound, None
        if unbound is None:
            return
        place = self._new_place()
        with unbound:
            try:
                unbound.bind(place)
                unbound.listen(BACKLOG)
            except OSError as error:
                self._say(f"what is fetched of the checkpoint cannot be handed to the ranks: {error}")
                place = ""
        self._place = place

    @property
    def _running(self) -> str:
        return (self._uuid or LOOKING) if self._socket is not None else ""

    def fetches(self) -> tuple[Fetch, ...]:
        """Return what was fetched, for the account of a start."""
        from robust_run.report.startup.types import Fetch

        self._read()
        news = self.news
        if news is None or not news.have_bytes:
            return ()
        span = Fetch(
            "checkpoint", news.began_s, news.at_s, news.have_bytes, news.from_peers_bytes, is_whole=news.is_over
        )
        return (span,)

    def go_at(self, rate_bytes_s: float | None) -> None:
        """Have it go on at another pace."""
        self._send(FetchPace(rate_bytes_s=rate_bytes_s))

    def end(self) -> None:
        """Let the process end, with all it holds. The agent reaps it."""
        self._hang_up()
        self._is_untold = False
        if self._unbound is not None:
            self._unbound.close()
            self._unbound = None
        if self._place.startswith(self._folder or "\0"):
            with suppress(OSError):
                os.unlink(self._place)
        self._uuid = self._place = ""

    def _open(self, order: FetchOrder, port: int) -> None:
        from robust_run.ckpt_io.ahead import area, process

        ours, theirs = socket.socketpair()
        memory, counter, place = -1, None, ""
        try:
            memory = area.make()
            if self._unbound is not None:
                order = msgspec.structs.replace(order, hands_out=self._unbound.fileno())
            elif self._folder:
                place = self._new_place()
                counter = area.counter(place)
                order = msgspec.structs.replace(order, hands_out=counter.fileno())
            listening = port if port >= 0 else None
            argv = process.command(theirs.fileno(), memory, listening)
            env = {name: value for name, value in self._env.items() if name not in _NOT_ITS_BUSINESS}
            turn_table.begin(env)
            keep = tuple(each for each in (theirs.fileno(), memory, port, order.hands_out) if each >= 0)
            pid = self._start(argv, env, keep)
        except (OSError, RobustRunError) as error:
            ours.close()
            self._say(f"the checkpoint is not fetched ahead, ranks read it themselves: {error}")
            return
        finally:
            theirs.close()
            if counter is not None:
                counter.close()
            if memory >= 0:
                os.close(memory)
        ours.setblocking(False)
        self._socket, self._came = ours, bytearray()
        self._uuid, self._place, self._has_said = order.uuid, place or f"/proc/{pid}/fd/{memory}", False
        self.news = None
        self._send(order)
        if self._listen is not None:
            self._listen(ours, self._read)

    def _send(self, message: FetchOrder | FetchPace) -> None:
        if self._socket is not None:
            with suppress(OSError):  # if it is gone, reading says so
                self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def _read(self) -> None:
        """Take in what it has said; without waiting."""
        while self._socket is not None:
            try:
                content = self._socket.recv(_MOST_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                content = b""
            if not content:
                self._hang_up()
                return
            self._came += content
            while (end := self._came.find(b"\n")) >= 0:
                line, self._came = bytes(self._came[:end]), self._came[end + 1 :]
                with suppress(msgspec.MsgspecError):
                    self._take(msgspec.json.decode(line, type=FetchNews))

    def _take(self, news: FetchNews) -> None:
        self.news = news
        self._uuid = self._uuid or news.uuid
        if news.trouble and not self._has_said:
            self._has_said = True
            text = news.trouble[:500]
            self._say(f"what is not fetched ahead of the checkpoint, ranks read themselves: {text}")

    def _hang_up(self) -> None:
        sock, self._socket = self._socket, None
        if sock is None:
            return
        if self._listen is not None:
            self._listen(sock, None)
        sock.close()
