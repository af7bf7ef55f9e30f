"""Nodes that share blocks: each block leaves the origin once, whatever peers do wrong costs time and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefetch.images import MIB, make_image
from servers.model_origin import ModelOrigin

from robust_run.errors import UserError
from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.cache_files import Sums
from robust_run.prefetch.fetching.sources import origin
from robust_run.prefetch.fetching.workers import Fetcher
from robust_run.prefetch.peers.held import chosen
from robust_run.prefetch.peers.origin import Origin
from robust_run.prefetch.peers.source import PeerSource
from robust_run.prefetch.peers.standing import GroupOwners, GroupPatience, Holders, Peers, group_of
from robust_run.prefetch.peers.together import Together, listen
from robust_run.prefetch.peers.types import PeerOptions, split_address, token_of
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchLimits, Priority

COUNT = 16
TOKEN = "a token of sixteen or more"
#: So patient that a busy machine is never taken for a silent peer.
PATIENT = FetchLimits(
    width=8,
    demand_width=4,
    run_bytes=2 * MIB,
    aligned=True,
    read_limit_s=60.0,
    request_limit_s=60.0,
    stall_s=30.0,
    hedge_after_s=60.0,
    keep_free_bytes=0,
)
QUICK = msgspec.structs.replace(PATIENT, stall_s=1.0, hedge_after_s=0.5)
WAIT_S = 60.0


class Node:
    """A node of a job, without its mount."""

    def __init__(self, folder: Path, block_map: BlockMap, url: str, token: str, **options: object) -> None:
        patience = {"demand_wait_s": 60.0, "wait_s": 60.0, **options}
        limits = QUICK if "wait_s" in options else PATIENT
        self.options = PeerOptions(token=token, bind="127.0.0.1:0", **patience)  # type: ignore[arg-type]
        self.cache = Cache(str(folder), block_map)
        self.listening = listen(self.options)
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.together = Together(block_map, self.options, limits, self.listening)
        self.origin = origin(url, 0, limits)
        self.fetcher = Fetcher(block_map, self.cache, self.together.sources(self.origin), limits)
        self.fetcher.start()
        self.together.start(self.cache, self.fetcher)

    def read(self, offset: int, size: int) -> bytes:
        """Read as a program would. AssertionError where that fails."""
        over = threading.Event()
        found: list[tuple[bytes | None, str]] = []

        def answer(data: bytes | None, why: str) -> None:
            found.append((data, why))
            over.set()

        self.fetcher.read(offset, size, answer)
        assert over.wait(WAIT_S), "the read hangs"
        data, why = found[0]
        assert data is not None, why
        return data

    def origin_bytes(self) -> int:
        return sum(each.good_bytes for each in self.fetcher.counts().sources if each.name != "peers")

    def close(self) -> None:
        self.fetcher.stop(WAIT_S)
        self.together.close()
        self.origin.close()
        self.cache.close()


class Job:
    """Nodes that start the same image."""

    def __init__(self, folder: Path, model: ModelOrigin) -> None:
        self.folder, self.origin = folder, model
        path, self.map = make_image(folder / "origin", COUNT * MIB - 999)
        self.data = path.read_bytes()
        self.nodes: list[Node] = []

    def node(self, *, token: str = TOKEN, **options: object) -> Node:
        folder = self.folder / f"node-{len(self.nodes)}"
        self.nodes.append(Node(folder, self.map, f"{self.origin.url}train.sqsh", token, **options))
        return self.nodes[-1]

    def owners(self, count: int) -> list[Node]:
        """Start nodes of which each is the first owner of something. Addresses decide that, and they are drawn anew each time."""
        while True:
            for _ in range(count):
                self.node()
            assignment = GroupOwners(blockmap.identity(self.map), sorted(node.address for node in self.nodes), 1)
            if len({assignment.owners(group_of(block, MIB)) for block in range(COUNT)}) == count:
                return self.nodes
            for node in self.nodes:
                node.close()
            self.nodes.clear()

    def meet(self, *others: str) -> None:
        members = [*(node.address for node in self.nodes), *others]
        for node in self.nodes:
            node.together.meet(members, node.address)

    def start(self) -> None:
        """All nodes prefetch all of the image; returns when they have it."""
        for node in self.nodes:
            node.fetcher.prefetch([BlockRun(0, COUNT)])
        for node in self.nodes:
            until(lambda node=node: node.cache.complete)
            assert Path(node.cache.path).read_bytes() == self.data


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not happen")


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """Give an address where nobody listens, and nobody else can meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(name="job")
def _job(tmp_path: Path) -> Iterator[Job]:
    (tmp_path / "origin").mkdir()
    with ModelOrigin(tmp_path / "origin", latency_s=0.005) as model:
        job = Job(tmp_path, model)
        yield job
        for node in job.nodes:
            node.close()


def test_every_block_leaves_the_origin_once_however_many_nodes_start(job: Job) -> None:
    job.owners(5)
    job.meet()
    job.start()
    assert job.origin.bytes_sent == len(job.data)
    assert sum(node.together.counts().received_bytes for node in job.nodes) == 4 * len(job.data)
    until(lambda: sum(node.together.counts().sent_bytes for node in job.nodes) == 4 * len(job.data))
    # They share the work. A node counts what came a moment after it has kept it.
    until(lambda: all(node.origin_bytes() > 0 for node in job.nodes))


def test_a_read_that_nobody_prefetched_comes_through_the_node_whose_turn_it_is(job: Job) -> None:
    for _ in range(3):
        job.node()
    job.meet()
    for number, node in enumerate(job.nodes):
        assert node.read(number, 5 * MIB) == job.data[number : 5 * MIB + number]
    assert job.origin.bytes_sent <= 6 * MIB, "5 or 6 blocks, each once"


def test_before_the_members_are_known_the_origin_is_asked(job: Job) -> None:
    node = job.node()
    assert node.read(0, 10) == job.data[:10]
    assert node.together.counts().members == 0
    left_s = node.together.source.patience.left_s(0, Priority.DEMAND, time.monotonic() + 1000.0)
    assert left_s == 60.0, "a later read of the same group waits for peers as long as any"


def test_prefetching_may_wait_for_the_members_and_no_longer_than_agreed(job: Job) -> None:
    patient, hasty = job.node(members_wait_s=3600.0), job.node(members_wait_s=0.2)
    for node in job.nodes:
        node.fetcher.prefetch([BlockRun(0, COUNT)])
    until(lambda: hasty.cache.complete)
    assert patient.cache.present() == 0
    assert patient.read(0, 10) == job.data[:10], "a read does not wait"
    job.meet()
    until(lambda: patient.cache.complete)


def test_before_it_knows_members_a_node_takes_no_more_from_the_origin_than_it_reads(tmp_path: Path) -> None:
    now_s = 0.0
    _path, small = make_image(tmp_path, 2 * MIB, block_bytes=MIB // 8)
    options = PeerOptions(token=TOKEN, members_wait_s=30.0)
    peers = PeerSource(small, options, PATIENT, clock=lambda: now_s)
    far = origin(str(tmp_path / "train.sqsh"), 0, PATIENT)
    source = Origin(far, peers, clock=lambda: now_s)
    assert source.offers(3, 1, Priority.DEMAND) == 0.0
    assert source.offers(0, 8, Priority.DEMAND) is None
    assert source.offers(0, 8, Priority.HOT) == 30.0
    peers.meet(["127.0.0.1:1"], "127.0.0.1:1")
    assert source.offers(0, 8, Priority.DEMAND) == 0.0, "it is alone: nothing is fetched twice"
    alone = Origin(far, PeerSource(small, options, PATIENT, clock=lambda: now_s), clock=lambda: now_s)
    now_s = 31.0
    assert alone.offers(0, 8, Priority.DEMAND) == 0.0, "nobody is waited for any more"


def test_wrong_blocks_of_a_peer_are_refused_and_come_from_elsewhere(job: Job) -> None:
    liar, *honest = job.owners(3)
    liar.fetcher.prefetch([BlockRun(0, COUNT)])
    until(lambda: liar.cache.complete)
    with open(liar.cache.path, "r+b") as file, open(os.path.join(liar.cache.folder, "sums"), "r+b") as noted:
        for block in range(COUNT):
            wrong = b"garbage".ljust(liar.cache.block_map.block_size_bytes(block))
            file.seek(block * MIB)
            file.write(wrong)
            Sums(noted.fileno()).note(block * MIB, wrong)  # it takes them for right
    job.meet()
    for node in honest:
        node.fetcher.prefetch([BlockRun(0, COUNT)])
    for node in honest:
        until(lambda node=node: node.cache.complete)
        assert Path(node.cache.path).read_bytes() == job.data
    assert any(node.together.counts().wrong_blocks for node in honest)
    assert any("wrong digest" in problem for node in honest for problem in node.together.counts().problems)


def test_a_dead_peer_is_replaced_by_the_next_owner(job: Job) -> None:
    for _ in range(4):
        job.node()
    with nobody() as address:
        job.meet(address)
        job.start()
    assert job.origin.bytes_sent <= 2 * len(job.data), "at most two nodes for each block"


def test_a_node_that_was_told_the_members_later_gives_as_soon_as_it_knows_them(job: Job) -> None:
    early, late = job.owners(2)
    members = [early.address, late.address]
    early.together.meet(members, early.address)
    early.fetcher.prefetch([BlockRun(0, COUNT)])
    until(lambda: early.origin_bytes() > 0)
    late.together.meet(members, late.address)
    until(lambda: early.cache.complete)
    assert job.origin.bytes_sent == len(job.data)
    assert early.together.counts().failures == 0


def test_the_second_owner_takes_over_from_one_that_is_left_alone(job: Job) -> None:
    for _ in range(3):
        job.node()
    with nobody() as address:
        job.meet(address)
        job.start()
    assert job.origin.bytes_sent < 1.5 * len(job.data), "not every node by itself"


def test_a_silent_peer_holds_nobody_up_for_long(job: Job) -> None:
    for _ in range(2):
        job.node(demand_wait_s=0.3, wait_s=1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        job.meet(f"127.0.0.1:{silent.getsockname()[1]}")
        job.start()


def test_who_does_not_know_the_token_gets_nothing_and_starts_all_the_same(job: Job) -> None:
    for _ in range(2):
        job.node()
    stranger = job.node(token="another token, as long as that")
    job.meet()
    job.start()
    assert stranger.together.counts().received_bytes == 0


def asked(node: Node, headers: dict[str, str], path: str | None = None) -> tuple[int, dict[str, str]]:
    host, port = split_address(node.address)
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=WAIT_S)) as connection:
        connection.request("GET", path or f"/blocks/{blockmap.identity(node.cache.block_map)}", headers=headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status, dict(reply.getheaders())


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 416),
        ({"Range": "bytes=0-"}, 416),
        ({"Range": "bytes=-5"}, 416),
        ({"Range": f"bytes=0-{1 << 40}"}, 416),
        ({"Range": "bytes=5-4"}, 416),
        ({"Range": "bytes=0-9,20-29"}, 416),
        ({"Range": "bytes=0-9"}, 206),
        ({"Range": "bytes=0-9", "Authorization": "Bearer"}, 401),
        ({"Range": "bytes=0-9", "Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Range": "bytes=0-9", "Robust-Failed": "7,x,-1,,", "Robust-From": "nobody:1"}, 206),
    ],
)
def test_what_a_peer_may_ask_for(job: Job, more: dict[str, str], status: int) -> None:
    node = job.node()
    job.meet()
    assert node.read(0, 10) == job.data[:10]  # what is there is given at once, however busy the machine
    assert asked(node, {"Authorization": f"Bearer {TOKEN}", **more})[0] == status
    assert asked(node, {"Authorization": f"Bearer {TOKEN}", **more}, "/blocks/../image")[0] == 404


def test_a_busy_owner_sends_who_asks_to_somebody_who_got_it_from_him(job: Job) -> None:
    for _ in range(3):
        job.node(uploads=0)
    job.meet()
    group = 3
    members = sorted(node.address for node in job.nodes)
    first = GroupOwners(blockmap.identity(job.map), members, 2).owners(group)[0]
    owner = next(node for node in job.nodes if node.address == first)
    others = [node for node in job.nodes if node is not owner]
    for number, node in enumerate(others, start=1):
        at = group * 2 * MIB
        assert node.read(at, 99) == job.data[at : at + 99]
        # Who gave it writes that down a moment after it arrived.
        until(lambda number=number: sum(each.together.counts().sent_bytes for each in job.nodes) == number * MIB)
    redirected = [node.together.counts().redirected for node in others]
    assert redirected == [0, 1]
    assert [node.together.counts().sent_bytes for node in (owner, *others)] == [MIB, MIB, 0]
    assert job.origin.bytes_sent == MIB


def test_what_is_no_address_is_passed_over(job: Job) -> None:
    node = job.node()
    assert node.together.meet([node.address, "nonsense", "a b:3", "x/y:4", "h:99999"], node.address) == 1
    assert len(node.together.counts().problems) == 4


def test_a_node_that_comes_later_gets_all_from_the_others(job: Job) -> None:
    members = [node.address for node in job.owners(2)]
    job.meet()
    job.start()
    late = job.node()
    late.together.meet(members, late.address)
    late.fetcher.prefetch([BlockRun(0, COUNT)])
    until(lambda: late.cache.complete)
    assert job.origin.bytes_sent == len(job.data), "nothing more left the origin"
    assert late.together.counts().sent_bytes == 0


def test_what_a_node_has_from_before_does_not_leave_the_origin_again(job: Job) -> None:
    """It was alone at first, it built the set-up, or its job was started anew with new nodes beside it."""
    first, *others = job.owners(3)
    first.together.meet([first.address], first.address)
    first.fetcher.prefetch([BlockRun(0, COUNT)])
    until(lambda: first.cache.complete)
    job.meet()
    for node in others:
        until(lambda node=node: not node.together.source.is_learning(0.0))
    job.start()
    assert job.origin.bytes_sent == len(job.data)


def test_who_is_asked_what_he_has_is_not_always_the_same() -> None:
    members = [f"n{number:02}" for number in range(40)]
    assert chosen(members, "n00") == members[1:17]
    assert chosen(members, "n39") == members[:16]
    assert chosen(members[:3], "n01") == ["n02", "n00"]


def test_nodes_that_hear_of_more_nodes_go_on_with_what_they_fetch(job: Job) -> None:
    nodes = job.owners(4)
    members = [node.address for node in nodes]
    for count in range(2, 5):
        for node in nodes[:count]:
            node.together.meet(members[:count], node.address)
        for node in nodes[0 if count == 2 else count - 1 : count]:
            node.fetcher.prefetch([BlockRun(0, COUNT)])
    for node in nodes:
        until(lambda node=node: node.cache.complete)
    assert job.origin.bytes_sent <= 1.5 * len(job.data), "what was under way was not made twice by all"
    assert sum(node.together.counts().failures for node in nodes) == 0


def test_whose_turn_it_is_says_that_it_is_fetching(job: Job) -> None:
    for _ in range(3):
        job.node()
    job.meet()
    members = sorted(node.address for node in job.nodes)
    owners = GroupOwners(blockmap.identity(job.map), members, 2).owners(0)
    job.origin.fault = "silent"
    headers = {"Authorization": f"Bearer {TOKEN}", "Range": "bytes=0-9"}
    said = {node.address: asked(node, headers) for node in job.nodes if node.address in owners[:1]}
    assert [(status, more.get("Robust-Coming")) for status, more in said.values()] == [(503, "1")]
    job.origin.fault = None


def test_a_node_whose_origin_gives_nothing_says_so_and_the_next_owner_fetches(job: Job) -> None:
    cut_off, *others = job.owners(3)
    job.meet()
    for _ in range(3):
        cut_off.together.source.origin_gave(well=False)
    for node in others:
        node.fetcher.prefetch([BlockRun(0, COUNT)])
    for node in others:
        until(lambda node=node: node.cache.complete)
    assert cut_off.origin_bytes() == 0
    assert job.origin.bytes_sent <= 1.5 * len(job.data), "not every node by itself"
    assert any("502" in problem for node in others for problem in node.together.counts().problems)


def test_a_node_may_stop_before_it_has_begun_to_give(job: Job) -> None:
    for _ in range(10):
        node = job.node()
        node.together.close()
        assert node.listening.fileno() == -1
        node.close()
    job.nodes.clear()


@pytest.mark.parametrize("options", [{"token": "short"}, {"bind": "nowhere"}, {"origins": 0}, {"token": "ü" * 20}])
def test_options_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        listen(PeerOptions(**{"token": TOKEN, "bind": "127.0.0.1:0", **options}))  # type: ignore[arg-type]


def test_the_peers_token_does_not_tell_the_jobs() -> None:
    assert token_of("x" * 64) != token_of("y" * 64)
    assert "x" * 8 not in token_of("x" * 64)


members = st.lists(st.integers(0, 999).map(lambda number: f"10.0.0.1:{number}"), min_size=1, max_size=20, unique=True)


@given(members, st.integers(0, 1 << 40), st.integers(1, 4))
def test_a_group_has_k_owners_and_only_the_groups_of_a_lost_node_move(names: list[str], group: int, count: int) -> None:
    whole = GroupOwners("image", names, count)
    owners = list(whole.owners(group))
    assert len(set(owners)) == len(owners) == min(count, len(names))
    lost = names[0]
    if len(names) > 1 and lost not in owners:
        fewer = GroupOwners("image", names[1:], count)
        assert list(fewer.owners(group)) == owners[: len(names) - 1]


def test_the_work_is_shared_evenly() -> None:
    assignment = GroupOwners("image", [f"node-{number}:1" for number in range(8)], 2)
    first = [assignment.owners(group)[0] for group in range(4000)]
    assert all(400 < first.count(member) < 600 for member in assignment.members)


def test_patience_ends_and_starts_anew_once_the_group_came() -> None:
    patience = GroupPatience(2.0, 15.0)
    assert patience.left_s(7, Priority.HOT, 100.0) == 15.0
    assert patience.left_s(7, Priority.DEMAND, 110.0) == 2.0, "a demand has its own time"
    assert patience.left_s(7, Priority.HOT, 116.0) == 0.0
    patience.arrived(7)
    assert patience.left_s(7, Priority.HOT, 200.0) == 15.0
    patience.gave_up(7, 200.0)
    assert patience.left_s(7, Priority.HOT, 201.0) == 0.0
    assert patience.left_s(7, Priority.DEMAND, 231.0) == 2.0


def test_who_says_that_it_is_coming_is_waited_for_longer_and_not_for_ever() -> None:
    patience = GroupPatience(2.0, 15.0)
    assert patience.left_s(7, Priority.DEMAND, 100.0) == 2.0
    patience.promised(7, 101.5)
    assert patience.left_s(7, Priority.DEMAND, 102.5) == 1.0
    patience.promised(7, 114.5)
    assert patience.left_s(7, Priority.DEMAND, 114.5) == 0.5, "15 s in all"
    assert patience.left_s(7, Priority.HOT, 114.5) == 15.0
    patience.arrived(7)
    assert patience.left_s(7, Priority.DEMAND, 115.0) == 2.0


def test_a_peer_that_fails_is_left_alone_for_longer_each_time() -> None:
    peers = Peers()
    peers.failed("a:1", 0.0)
    peers.failed("a:1", 0.1)  # at the same time as the first
    assert not peers.may_ask("a:1", 0.4)
    assert peers.may_ask("a:1", 0.6)
    peers.failed("a:1", 1.0)
    assert not peers.may_ask("a:1", 1.9)
    peers.worked("a:1")
    peers.failed("a:1", 10.0)
    assert peers.may_ask("a:1", 10.6)


def test_holders_are_named_in_turns_and_never_the_one_who_asks() -> None:
    holders = Holders()
    assert holders.somebody(0, but="3") is None
    for member in "123":
        holders.gave(0, member)
    assert {holders.somebody(0, but="3") for _ in range(4)} == {"1", "2"}
    for member in range(100):
        holders.gave(0, str(member))
    assert {holders.somebody(0, but="") for _ in range(50)} == set(map(str, range(92, 100)))
