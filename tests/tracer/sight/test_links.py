"""Which connections are stuck: tables as kernels write them, texts that none does, and real networks that are cut."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest
from hosts import Cluster, need_hosts
from hypothesis import given
from hypothesis import strategies as st
from jobs import wait_for
from ranks_alone import until

from robust_run.tracer.sight.collect import collect
from robust_run.tracer.sight.links import LINKS, STUCK, StuckConnections, parse
from robust_run.tracer.sight.target_view import SightWorld
from robust_run.tracer.sight.targets import Target
from robust_run.tracer.types import StuckConnection

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TAIL = "2 00000000e0265c13 1600 4 0 10 7\n"


def row(
    inode: int,
    *,
    here: str = "0A4D000B:0FA0",
    there: str = "0A4D000C:1388",
    state: str = "01",
    unsent: int = 48_000,
    timer: str = "01",
    retries: int = 6,
) -> str:
    """A row of a table; addresses as a machine with the first byte first writes them."""
    here, there = (_in_own_order(end) for end in (here, there))
    return f"   8: {here} {there} {state} {unsent:08X}:00000000 {timer}:000002A1 {retries:08X}     0        0 {inode} {TAIL}"


def _in_own_order(end: str) -> str:
    address, _, port = end.partition(":")
    words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port}"


def table(*rows: str) -> bytes:
    return (HEAD + "".join(rows)).encode()


STUCK_LINK = StuckConnection(here="10.77.0.11:4000", there="10.77.0.12:5000", unsent_bytes=48_000, retries=6)


@pytest.mark.skipif(sys.byteorder != "little", reason="recorded on a machine with the last byte first")
def test_a_recorded_table_of_a_host_that_was_cut_off() -> None:
    recorded = (
        f"{HEAD}"
        "   0: 00000000:1388 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 71 1 0 100 0 0 10 0\n"
        "   1: 0B004D0A:B4A3 0A004D0A:D16E 01 00000000:00000000 02:000003F0 00000000     0        0 72 2 0 20 4 15 18 -1\n"
        "   2: 0B004D0A:8E33 0C004D0A:C644 01 000002B0:00000010 01:00000129 00000004     0        0 73 3 0 320 4 30 1 9\n"
        "   3: 0B004D0A:AC1F 0C004D0A:AFC4 06 00000000:00000000 03:0000004C 00000000     0        0 0 3 0\n"
    )
    assert parse(recorded.encode()) == {"73": StuckConnection("10.77.0.11:36403", "10.77.0.12:50756", 688, 4)}


def test_a_connection_that_retransmits_is_stuck() -> None:
    assert parse(table(row(73))) == {"73": STUCK_LINK}


@pytest.mark.parametrize(
    "healthy",
    [
        {"unsent": 0},
        {"retries": 0},
        {"timer": "00"},
        {"timer": "02", "unsent": 0},  # only to see whether the other end is still there
        {"timer": "04"},  # the other end's kernel answers, its process does not read
        {"state": "02"},
        {"state": "06"},
        {"state": "0A"},
    ],
)
def test_any_other_is_not(healthy: dict[str, object]) -> None:
    assert parse(table(row(73, **healthy), row(74))).keys() == {"74"}  # type: ignore[arg-type]


def test_addresses_of_the_sixth_version_and_those_of_the_fourth_in_them() -> None:
    mapped = row(1, here="00000000000000000000FFFF0A4D000B:0FA0", there="00000000000000000000FFFF0A4D000C:1388")
    own = row(2, here="FD000000000000000000000000000001:0FA0", there="FD000000000000000000000000000002:1388")
    found = parse(table(mapped, own))
    assert found["1"] == STUCK_LINK
    assert (found["2"].here, found["2"].there) == ("[fd00::1]:4000", "[fd00::2]:5000")


def test_very_many_are_not_all_taken() -> None:
    assert len(parse(table(*(row(inode) for inode in range(1, STUCK * 2))))) == STUCK


@given(st.binary(max_size=2000))
def test_no_text_is_too_strange(garbage: bytes) -> None:
    assert parse(table(row(73)) + b"\n" + garbage + b"\n").get("73") == STUCK_LINK


@given(st.text(alphabet="0123456789ABCDEF: \n", max_size=400))
def test_what_looks_nearly_like_a_row_does_no_harm(text: str) -> None:
    whole = row(73)
    for cut in range(0, len(whole), 7):
        found = parse((whole[:cut] + text + whole[cut:]).encode())
        assert all(link.unsent_bytes > 0 and link.retries > 0 for link in found.values())


# -- processes and their tables


class Machine:
    """A folder that looks like /proc."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)
        self._folder = folder

    def process(self, pid: int, *sockets: int, namespace: str = "net:[1]") -> None:
        own = self._folder / str(pid)
        for name in ("ns", "fd", "net"):
            (own / name).mkdir(parents=True)
        (own / "ns" / "net").symlink_to(namespace)
        (own / "fd" / "0").symlink_to("/dev/null")
        for number, inode in enumerate(sockets, 3):
            (own / "fd" / str(number)).symlink_to(f"socket:[{inode}]")

    def shows(self, pid: int, *rows: str, name: str = "tcp") -> None:
        (self._folder / str(pid) / "net" / name).write_bytes(table(*rows))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def looked_at(machine: Machine, *pids: int) -> StuckConnections:
    links = StuckConnections(machine.root)
    links.sample(pids)
    return links


def test_each_process_has_the_connections_that_it_holds(machine: Machine) -> None:
    machine.process(1, 71, 72)
    machine.process(2, 73)
    machine.shows(1, row(72), row(73, retries=2), row(74))
    links = looked_at(machine, 1, 2)
    assert links.of(1) == (STUCK_LINK,)
    assert [link.retries for link in links.of(2)] == [2]
    assert links.of(3) == ()


def test_the_table_of_a_namespace_is_read_once_for_all_its_processes(machine: Machine) -> None:
    machine.process(1, 71)
    machine.process(2, 72)
    machine.process(3, 71, namespace="net:[2]")
    machine.shows(1, row(71), row(72))
    machine.shows(2, row(72, retries=1))  # which is not looked into
    machine.shows(3, name="tcp6")
    links = looked_at(machine, 1, 2, 3)
    assert links.of(1) == links.of(2) == (STUCK_LINK,)
    assert links.of(3) == (), "another namespace has other connections"


def test_the_most_stuck_come_first_and_not_all_of_very_many(machine: Machine) -> None:
    machine.process(1, *range(1, 100))
    machine.shows(1, *(row(inode, retries=1 + inode % 9) for inode in range(1, 100)))
    retries = [link.retries for link in looked_at(machine, 1).of(1)]
    assert len(retries) == LINKS
    assert retries == sorted(retries, reverse=True) and retries[0] == 9


@pytest.mark.parametrize(
    ("later", "is_stuck"),
    [
        (row(71), True),
        (row(71, retries=7, unsent=50_000), True),
        (row(71, retries=1), False),
        (row(71, unsent=47_000), False),
        (row(71, retries=0), False),
        (row(71, there="0A4D000D:1388"), False),
        (row(72), False),
        ("", False),
    ],
)
def test_only_what_gets_nothing_through_during_the_whole_look_counts(
    machine: Machine, later: str, is_stuck: bool
) -> None:
    machine.process(1, 71, 72)
    machine.shows(1, row(71))
    links = looked_at(machine, 1)
    machine.shows(1, later)
    links.sample([1])
    assert bool(links.of(1)) == is_stuck


def test_what_got_stuck_during_the_look_does_not_count_yet(machine: Machine) -> None:
    machine.process(1, 71)
    machine.shows(1)
    links = looked_at(machine, 1)
    machine.shows(1, row(71))
    links.sample([1])
    assert links.of(1) == ()


def test_a_process_that_cannot_be_read_has_none(machine: Machine) -> None:
    machine.process(1, 71)
    links = looked_at(machine, 1, 2)
    links.sample([2])
    assert links.of(1) == links.of(2) == ()


# -- real kernels


def test_a_peer_that_does_not_read_is_no_dead_link() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        client.setblocking(False)
        port = f":{client.getsockname()[1]:04X} "

        def is_probing() -> bool:
            try:
                client.send(bytes(1 << 20))
            except BlockingIOError:
                rows = Path("/proc/self/net/tcp").read_text().splitlines()
                return any(port in line.partition(" 01 ")[0][:28] and " 04:" in line for line in rows)
            return False

        until(is_probing, "the kernel to ask whether there is room again")
        links = StuckConnections()
        links.sample([os.getpid()])
        assert links.of(os.getpid()) == ()


def test_a_cut_network_shows_at_the_process_that_sends_into_it(tmp_path: Path) -> None:
    need_hosts()
    serve = """if True:
        import socket
        server = socket.create_server(("", 5000))
        print("ready", flush=True)
        peer, _ = server.accept()
        while peer.recv(1000):
            pass
    """
    talk = """if True:
        import socket, sys, time
        peer = socket.create_connection((sys.argv[1], 5000))
        while True:
            peer.sendall(bytes(100))
            print("sent", flush=True)
            time.sleep(0.02)
    """
    with Cluster(2, tmp_path) as cluster:
        server = cluster[0].start([sys.executable, "-I", "-S", "-c", serve])
        wait_for(server.lines, "the server")
        client = cluster[1].start([sys.executable, "-I", "-S", "-c", talk, cluster[0].address])
        wait_for(client.lines, "data on its way")

        def stuck_now() -> tuple[StuckConnection, ...]:
            before = StuckConnections()
            before.sample([client.pid])
            return before.of(client.pid)

        wait_for(lambda: not stuck_now(), "data that gets through")
        cluster[1].cut_from(cluster[0])

        def links() -> tuple[StuckConnection, ...]:
            target = Target(rank=0, node="node-1", pid=client.pid)
            (sight,) = asyncio.run(collect([target], gap_s=0.1, world=SightWorld(spy=None)))
            return sight.processes[0].links if sight.processes else ()

        found = wait_for(lambda: [link for link in links() if link.retries >= 2], "two retransmissions")
    (link,) = found
    assert link.there == f"{cluster[0].address}:5000"
    assert link.here.startswith(f"{cluster[1].address}:")
    assert link.unsent_bytes >= 100
