"""Nodes that share a checkpoint: each unit leaves the store once, and a node that is gone costs nobody the others' units."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from ahead_ground import CONTENT, TOTAL, Ground

from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.area import HERE, Area, make, mark_of
from robust_run.ckpt_io.ahead.peers import PeerServer, PeerUnits, place_of

KEY = "k" * 32


class Node:
    """One of several that fetch the same checkpoint."""

    def __init__(
        self,
        ground: Ground,
        own: int,
        listening: list[socket.socket],
        key: str = KEY,
        belongs: list[int] | None = None,
        *,
        early: bool = False,
    ) -> None:
        peers = [f"127.0.0.1:{each.getsockname()[1]}" for each in listening]
        place = place_of(mark_of(ground.found.header))
        self.memory = make()
        self.area = Area(self.memory, ground.table, ground.found.header)
        self.peers = PeerUnits(place, peers, own, key, ground.table.sizes, patience_s=30, belongs=belongs)
        share = rules.Share(own, len(peers))
        if early:
            self.fetcher = ground.fetcher(self.area, plan=rules.early(ground.table.sizes, share, None))
        else:
            self.fetcher = ground.fetcher(
                self.area, share=share, peer=self.peers.take, is_ours=self.peers.is_ours, belongs=belongs
            )
        self.server = PeerServer(listening[own], self.area, place, KEY, self.fetcher.wait_for, self.peers.is_ours)

    def fetch(self) -> None:
        self.fetcher.run(4)

    @property
    def is_whole(self) -> bool:
        return all(state == HERE for state in self.area.states)

    def close(self) -> None:
        self.server.stop()
        self.peers.close()
        os.close(self.memory)


@contextmanager
def nodes(ground: Ground, count: int, *, silent: int = -1) -> Iterator[list[Node]]:
    """Nodes that fetch, in this process. `silent`: one whose port nobody serves."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [Node(ground, own, listening) for own in range(count) if own != silent]
    if silent >= 0:
        listening[silent].close()
    for node in found:
        node.server.start()
    threads = [threading.Thread(target=node.fetch) for node in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        yield found
    finally:
        for node in found:
            node.close()


@pytest.fixture(autouse=True)
def small_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "STRIPE_BYTES", 1 << 20)  # of which the checkpoint here has several


def test_each_unit_leaves_the_store_once(ground: Ground) -> None:
    with nodes(ground, 3) as found:
        assert all(node.is_whole for node in found)
        assert ground.sent_bytes == TOTAL
        assert sum(node.fetcher.from_peers_bytes for node in found) == 2 * TOTAL
        for node in found:
            assert b"".join(bytes(node.area.data(number)) for number in range(ground.table.units)) == b"".join(
                CONTENT.values()
            )


def test_what_a_dead_node_was_to_fetch_the_next_one_fetches_for_all(ground: Ground) -> None:
    with nodes(ground, 3, silent=1) as found:
        assert all(node.is_whole for node in found)
        sizes = ground.table.sizes
        of_the_dead = sum(size for size, stripe in zip(sizes, rules.stripes(sizes), strict=True) if stripe % 3 == 1)
        assert of_the_dead, "it had something to fetch"
        assert ground.sent_bytes == TOTAL


def test_a_shard_of_another_node_comes_from_that_node_when_it_is_wanted_and_the_rest_of_its_file_follows(
    ground: Ground,
) -> None:
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    belongs = [0 if ground.table.files[number] == 0 else 1 for number in range(ground.table.units)]
    assert belongs.count(0) > 1
    found = [Node(ground, own, listening, belongs=belongs) for own in range(2)]
    threads = [threading.Thread(target=node.fetch) for node in found]
    try:
        for node, thread in zip(found, threads, strict=True):
            node.server.start()
            thread.start()
        for own, node in enumerate(found):
            until(lambda node=node: node.fetcher.is_over)  # type: ignore[misc]
            assert [state == HERE for state in node.area.states] == [each == own for each in belongs]
        assert threads[1].is_alive(), "it waits for what may be wanted"
        assert found[1].fetcher.wait_for(belongs.index(0), 60)
        until(
            lambda: all(state == HERE for state, each in zip(found[1].area.states, belongs, strict=True) if each == 0)
        )
        assert ground.sent_bytes == TOTAL, "none of it came from the store"
    finally:
        for node, thread in zip(found, threads, strict=True):
            node.fetcher.stop.set()
            thread.join(60)
            node.close()


def test_a_node_goes_on_from_what_fell_to_it_when_it_knows_the_others(ground: Ground) -> None:
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    found = [Node(ground, own, listening, early=True) for own in range(2)]
    threads = [threading.Thread(target=node.fetch) for node in found]
    try:
        for node, thread in zip(found, threads, strict=True):
            thread.start()
            until(lambda node=node: node.fetcher.is_idle)  # type: ignore[misc]
        assert not any(node.is_whole or node.fetcher.is_over for node in found), "more follows"
        assert ground.sent_bytes == TOTAL, "together they have all of it"
        for own, node in enumerate(found):
            node.server.start()
            plan = rules.plan(ground.table.sizes, rules.Share(own, 2), None)
            node.fetcher.go_on(plan, node.peers.take, node.peers.is_ours)
        for node, thread in zip(found, threads, strict=True):
            thread.join(60)
            assert node.is_whole and node.fetcher.is_over
        assert ground.sent_bytes == TOTAL, "and the rest from each other"
    finally:
        for node, thread in zip(found, threads, strict=True):
            node.fetcher.stop.set()
            thread.join(60)
            node.close()


def until(is_so: Callable[[], bool]) -> None:
    """Wait for it."""
    end_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_who_does_not_know_the_key_gets_nothing(ground: Ground) -> None:
    with nodes(ground, 2) as found:
        place = place_of(mark_of(ground.found.header))
        url = f"http://127.0.0.1:{found[0].server.port}/{place}/0"
        for key, status in (("wrong" * 8, 401), ("", 401)):
            asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}", "Range": "bytes=0-0"})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(asked, timeout=30)
            refused.value.close()
            assert refused.value.code == status


@pytest.mark.parametrize("path", ["/", "/x/0", "{place}/-1", "{place}/99999", "{place}/../0", "{place}/0x1"])
def test_what_is_no_unit_is_not_found(ground: Ground, path: str) -> None:
    with nodes(ground, 1) as (node,):
        place = f"/{place_of(mark_of(ground.found.header))}"
        url = f"http://127.0.0.1:{node.server.port}{path.format(place=place)}"
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}", "Range": "bytes=0-0"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=30)
        refused.value.close()
        assert refused.value.code == 404


def test_a_unit_that_comes_wrong_from_a_node_is_read_from_the_store(ground: Ground) -> None:
    area = ground.area()

    def lies(_number: int, view: memoryview) -> bool:
        view[:] = bytes(len(view))
        return True

    ground.fetcher(area, peer=lies).run(2)
    assert ground.taken() == CONTENT
    assert ground.sent_bytes == TOTAL + len(ground.found.data)


def test_nodes_whose_readers_want_the_others_units_first_do_not_wait_for_each_other(ground: Ground) -> None:
    """Were all threads of both busy asking, nobody would fetch what is asked for."""
    area = ground.area()
    own = {number for number in range(ground.table.units) if number % 2}
    may_give, asked = threading.Event(), threading.Semaphore(0)

    def gives_late(_number: int, _view: memoryview) -> bool:
        asked.release()
        may_give.wait(60)
        return False

    fetcher = ground.fetcher(
        area, peer=lambda number, view: number not in own and gives_late(number, view), is_ours=own.__contains__
    )
    for number in range(ground.table.units):
        if number not in own:
            fetcher.demand(number)
    thread = threading.Thread(target=fetcher.run, args=(4,))
    thread.start()
    for _ in range(2):
        assert asked.acquire(timeout=60)
    assert all(fetcher.wait_for(number, 60) for number in own), "while two are asked for, and others wait to be"
    assert not asked.acquire(blocking=False)
    may_give.set()
    thread.join(60)
    assert ground.taken() == CONTENT
