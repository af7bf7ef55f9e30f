"""The block server's process: puts cache, sources, fetcher, FUSE and control together, and decides when to leave.

It leaves when its file is unmounted, when it is told to, and when its keeper is gone. Signals that end jobs do not end it: the
workers above still read while they save their state.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import InternalError, RobustRunError
from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.fetching.sources import BlockSource, origin
from robust_run.prefetch.fetching.workers import Fetcher
from robust_run.prefetch.peers.types import GROUP_BYTES
from robust_run.prefetch.rules.types import FetchLimits, Status
from robust_run.prefetch.server import control, mounting
from robust_run.prefetch.server.config import LARGEST_CONFIG_BYTES, Background, ServerConfig, ServerReady
from robust_run.prefetch.server.protocol import Answers
from robust_run.prefetch.server.serving import Server
from robust_run.prefetch.server.shared import Shared
from robust_run.prefetch.server.telling import Telling
from robust_run.store import turn_table

if TYPE_CHECKING:
    from robust_run.prefetch.peers.together import Together

#: What the first read of an image needs: squashfs has its superblock there.
_FIRST_BYTES = 4096
#: How often it is tried whether the last reader has gone, once the keeper has.
_LOOK_S = 0.1


def sources(config: ServerConfig, together: Together | None = None) -> Sequence[BlockSource]:
    """Return where blocks come from, the preferred first. Raises `UserError` for a URL that cannot be one."""
    last = origin(config.image_url, config.block_map.offset_bytes, config.options.limits, config.options.store_options)
    return together.sources(last) if together is not None else (last,)


def _sharing(config: ServerConfig, limits: FetchLimits) -> Together | None:
    peers = config.options.peers
    if peers is None or config.peer_socket < 0:
        return None
    from robust_run.prefetch.peers.together import Together  # a start without peers does not wait for it

    return Together(config.block_map, peers, limits, socket.socket(fileno=config.peer_socket))


#: Reads are short; a thread that answers one does not wait the usual 5 ms for the interpreter while others fetch.
_SWITCH_S = 0.0005


def _limits(config: ServerConfig) -> FetchLimits:
    """Return how hard to fetch. Nodes that share blocks ask for whole groups, or they would not ask for the same."""
    limits = config.options.limits
    if config.options.peers is None:
        return limits
    return msgspec.structs.replace(limits, run_bytes=max(GROUP_BYTES, config.block_map.block_bytes), aligned=True)


class ServerOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a server was told in place of what its configuration says. The next one, should it die, does the same."""

    background: Background | None = None
    peers: tuple[tuple[str, ...], str] | None = None
    """All members, and which of them this node is."""


class BlockServer:
    """One server process."""

    def __init__(self, config: ServerConfig, telling: Telling) -> None:
        """`telling`: to its keeper. Raises `CacheRefused`, `UserError`, `BlockMapRefused`."""
        self._config = config
        self._map = blockmap.checked(config.block_map)
        self._leave = threading.Event()
        self._shared = Shared(config.shared)
        self._takes_over = self._shared.greeted
        self._remembering = threading.Lock()
        self._told = _told_before(self._shared)
        self._cache = Cache(config.cache_root, self._map)
        limits = _limits(config)
        self._together = _sharing(config, limits)
        self._telling = telling
        all_sources = sources(config, self._together)
        self._fetcher = Fetcher(
            self._map,
            self._cache,
            all_sources,
            limits,
            tell=telling.trouble,
            note=telling.note,
            takes_over=self._takes_over,
        )
        answers = Answers(self._map.size_bytes, os.geteuid(), os.getegid(), config.options.max_readahead_bytes)
        self._server = Server(config.device, self._shared, answers, self._fetcher.read)
        listening = socket.socket(fileno=config.control)
        self._control = control.Control(listening, self._carry_out)

    def run(self) -> None:
        """Serve until it is time to leave."""
        self._fetcher.start()
        if self._told.peers is not None and self._together is not None:
            self._together.meet(*self._told.peers)
        self._server.start()
        self._control.start()
        if self._takes_over:
            self._telling.ready(ServerReady())  # the mount is in use: reads say what is wrong
        else:
            self._fetcher.read(
                0, _FIRST_BYTES, lambda data, why: self._telling.ready(ServerReady(why if data is None else ""))
            )
            late = threading.Timer(self._config.options.start_limit_s, self._say_late)
            late.daemon = True
            late.start()
        # Only now: the threads that fetch would hold up what the mount waits for.
        self._fetcher.prefetch(self._config.hot)
        background = self._told.background or self._config.options.background
        self._fetcher.background(background.width, background.bytes_per_s)
        turns, what = turn_table.opened(), self._config.options.what
        turn_table.take_turns(lambda table: self._fetcher.take_turn(table, what), turns)
        if self._together is not None:
            # What it imports takes a while, and this node's own reads go first; peers that ask meanwhile wait a moment.
            threading.Thread(target=self._together.start, args=(self._cache, self._fetcher), daemon=True).start()
        threading.Thread(target=self._wait_for_keeper, daemon=True).start()
        threading.Thread(target=self._wait_for_unmount, daemon=True).start()
        self._leave.wait()
        if turns is not None:
            self._fetcher.take_turn(turns, what)  # what came last is told of, too
        self._fetcher.stop(limit_s=1.0)

    def _say_late(self) -> None:
        problems = self._fetcher.counts().problems or ("no source has answered",)
        limit_s = self._config.options.start_limit_s
        late = ServerReady(f"the beginning of the image could not be read within {limit_s:g} s: {problems[-1]}")
        self._telling.ready(late)

    def _wait_for_unmount(self) -> None:
        self._server.unmounted.wait()
        self._leave.set()

    def _wait_for_keeper(self) -> None:
        """Standard input ends when the keeper does."""
        while sys.stdin.buffer.read(1):
            pass
        deadline_s = time.monotonic() + self._config.options.grace_s
        while time.monotonic() < deadline_s and not self._leave.wait(_LOOK_S):
            if mounting.unmount_if_idle(self._config.mount_folder, self._config.mounted):
                break
        mounting.abort(self._config.mount_folder, self._config.mounted)
        self._leave.set()

    def _carry_out(self, request: control.Request) -> object:
        if isinstance(request, control.AskStatus):
            return self._status()
        if isinstance(request, control.AskTouches):
            return control.Touches(tuple(self._shared.touches()), self._shared.window_s)
        if isinstance(request, control.AskPrefetch):
            return control.Done(self._fetcher.prefetch(request.runs))
        if isinstance(request, control.AskBackground):
            self._remember(background=request.background)
            self._fetcher.background(request.background.width, request.background.bytes_per_s)
        elif isinstance(request, control.AskPeers):
            count = self._together.meet(request.members, request.own) if self._together is not None else 0
            self._remember(peers=(request.members, request.own))
            return control.Done(count)
        elif isinstance(request, control.AskWaitAnew):
            self._fetcher.wait_anew()
        elif isinstance(request, control.AskCloseWindow):
            self._shared.close_window()
        else:
            mounting.abort(self._config.mount_folder, self._config.mounted)
            threading.Timer(0.05, self._leave.set).start()  # let the answer out
        return control.Done()

    def _remember(self, **told: object) -> None:
        with self._remembering:
            self._told = msgspec.structs.replace(self._told, **told)
            self._shared.tell(msgspec.json.encode(self._told))

    def _status(self) -> Status:
        counts = msgspec.structs.asdict(self._fetcher.counts())
        return Status(
            pid=os.getpid(),
            image=blockmap.identity(self._map),
            blocks=self._map.blocks,
            present=self._cache.present(),
            window_open=self._shared.window_open,
            peers=self._together.counts() if self._together is not None else None,
            **counts,
        )


def _told_before(shared: Shared) -> ServerOrders:
    data = shared.told()
    return json_decoder(ServerOrders).decode(data) if data else ServerOrders()


def main() -> int:
    """Serve what standard input says. Return the exit code: 0: it was unmounted or told to leave."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_S)
    telling = Telling(1)
    try:
        line = sys.stdin.buffer.readline(LARGEST_CONFIG_BYTES)
        try:
            config = json_decoder(ServerConfig).decode(line)
        except msgspec.MsgspecError as error:
            raise InternalError(f"the keeper gave no configuration: {error}") from error
        BlockServer(config, telling).run()
    except RobustRunError as error:
        telling.ready(ServerReady(str(error)))
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0
