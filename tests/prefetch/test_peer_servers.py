"""Block servers that share: the keeper's address outlives a server, and members are known to the next one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefetch.images import MIB, make_image
from prefetch.private_mounts import privately
from servers.model_origin import ModelOrigin

from robust_run.errors import UserError
from robust_run.prefetch.peers.types import PeerOptions
from robust_run.prefetch.rules.queue import FetchQueue
from robust_run.prefetch.rules.source_health import Health
from robust_run.prefetch.rules.types import BlockRun, FetchLimits, Status
from robust_run.prefetch.server import ServeOptions, ServerHandle, control, start

COUNT = 8
WAIT_S = 60.0
#: So patient that a busy machine is not taken for a silent peer.
PEERS = PeerOptions(token="a token of sixteen or more", bind="127.0.0.1:0", demand_wait_s=60.0, wait_s=60.0)
LIMITS = FetchLimits(keep_free_bytes=0, request_limit_s=60.0, stall_s=60.0, hedge_after_s=60.0)


class Pair:
    """Two nodes on one machine: each with its own cache and mount."""

    def __init__(self, folder: Path, origin: ModelOrigin) -> None:
        self.folder, self.origin = folder, origin
        self.path, self.map = make_image(folder / "origin", COUNT * MIB)
        self.data = self.path.read_bytes()
        self.handles: list[ServerHandle] = []

    def start(self, peers: PeerOptions | None = PEERS) -> ServerHandle:
        folder = self.folder / f"node-{len(self.handles)}"
        (folder / "mount").mkdir(parents=True)
        options = ServeOptions(limits=LIMITS, peers=peers)
        url = f"{self.origin.url}train.sqsh"
        self.handles.append(start(url, self.map, str(folder / "cache"), str(folder / "mount"), options=options))
        return self.handles[-1]


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[Pair]:
    (tmp_path / "origin").mkdir()
    with ModelOrigin(tmp_path / "origin", latency_s=0.002) as origin:
        made = Pair(tmp_path, origin)
        yield made
        for handle in made.handles:
            handle.stop()


def port_of(handle: ServerHandle) -> int:
    peers = handle.status().peers
    assert peers is not None
    return peers.port


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not happen")


def whole(handle: ServerHandle) -> bytes:
    with open(handle.image_path, "rb") as file:
        return file.read()


def by_handle(*handles: ServerHandle, members: list[str]) -> None:
    for handle, own in zip(handles, members, strict=True):
        assert handle.meet(members, own) == len(members)


def by_socket(*handles: ServerHandle, members: list[str]) -> None:
    for handle, own in zip(handles, members, strict=True):
        asked = control.AskPeers(tuple(members), own)
        assert control.ask(handle.control_path, asked, control.Done).count == len(members)


@pytest.mark.parametrize("tell", [by_handle, by_socket])
@privately
def test_a_server_that_is_replaced_keeps_its_address_and_its_peers(pair: Pair, tell: Callable[..., None]) -> None:
    first, second = pair.start(), pair.start()
    members = [f"127.0.0.1:{port_of(handle)}" for handle in (first, second)]
    tell(first, second, members=members)
    assert whole(first) == pair.data
    before = first.status()
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: first.restarts == 1 and first.state == "serving")
    after = first.status()
    assert after.pid != before.pid
    assert before.peers is not None
    assert after.peers is not None
    assert (after.peers.port, after.peers.members) == (before.peers.port, 2)
    asked = pair.origin.bytes_sent
    assert whole(second) == pair.data
    counts = second.status().peers
    assert counts is not None
    assert counts.received_bytes + counts.sent_bytes >= (COUNT - 1) * MIB, "each block but the first went over once"
    assert pair.origin.bytes_sent == asked, "what a node fetched it gives, whoever was killed meanwhile"


@privately
def test_members_are_told_over_the_control_socket_too(pair: Pair) -> None:
    alone = pair.start(None)
    assert alone.status().peers is None
    assert control.ask(alone.control_path, control.AskPeers(("a:1",), "a:1"), control.Done).count == 0
    sharing = pair.start()
    own = f"127.0.0.1:{port_of(sharing)}"
    assert control.ask(sharing.control_path, control.AskPeers((own, "127.0.0.1:1"), own), control.Done).count == 2
    assert control.ask(sharing.control_path, control.AskStatus(), Status).peers is not None


@privately
def test_an_address_that_cannot_be_leaves_nothing_mounted(pair: Pair) -> None:
    with pytest.raises(UserError, match="host:port"):
        pair.start(PeerOptions(token=PEERS.token, bind="nowhere"))
    with open("/proc/thread-self/mountinfo") as file:
        assert str(pair.folder) not in file.read()


@pytest.mark.parametrize("aligned", [False, True])
def test_requests_of_nodes_that_share_end_where_groups_do(aligned: bool) -> None:
    limits = FetchLimits(run_bytes=2 * MIB, first_small=0, aligned=aligned)
    queue = FetchQueue(MIB, bytearray(COUNT), lambda *_: 0.0, Health(("origin",), limits), limits)
    queue.prefetch([BlockRun(1, 5)])
    jobs = [queue.next(0.0) for _ in range(3)]
    assert [(job.start, job.count) for job in jobs if job] == (
        [(1, 1), (2, 2), (4, 2)] if aligned else [(1, 2), (3, 2), (5, 1)]
    )
