"""Who hosts the controller: on made-up networks, and on this machine's own."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from jobs import unused_port

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.control.meeting import ALL_V4, ALL_V6, Guest, Host, SystemNetwork, in_order, meet, own_address
from robust_run.launcher.model.job import ManyNodes

PORT = 29500


class FakeNetwork:
    """One machine: its name, its addresses, what names mean to it, and what is listened on already."""

    def __init__(
        self,
        own: Sequence[str] = (),
        names: dict[str, Sequence[str]] | None = None,
        name: str = "here",
        taken: Sequence[str] = (),
        v6: bool = True,
    ) -> None:
        self.own = {"127.0.0.1", "127.0.1.1", "::1", *own}
        self.names = names or {}
        self.name = name
        self.taken = set(taken)
        self.v6 = v6
        self.trouble: int | None = None
        self.tried: list[str] = []
        self.sockets = ExitStack()

    def host_name(self) -> str:
        return self.name

    def resolve(self, host: str) -> Sequence[str]:
        numeric = host.replace(".", "").isdigit() or ":" in host
        return (host,) if numeric else self.names.get(host, ())

    def listen(self, address: str, port: int) -> socket.socket:
        assert port == PORT
        self.tried.append(address)
        everything = address in (ALL_V4, ALL_V6)
        if self.trouble:
            raise OSError(self.trouble, os.strerror(self.trouble))
        if ":" in address and not self.v6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        if address not in self.own and not everything:
            raise OSError(errno.EADDRNOTAVAIL, "not mine")
        if self.taken and (everything or address in self.taken or self.taken & {ALL_V4, ALL_V6}):
            raise OSError(errno.EADDRINUSE, "taken")
        self.taken.add(address)
        return self.sockets.enter_context(socket.socket())

    def address_towards(self, address: str) -> str:
        if address in self.own:
            return "127.0.0.1" if address.startswith("127.") else address
        for own in sorted(self.own):
            if own.split(".")[:2] == address.split(".")[:2]:
                return own
        raise OSError(errno.ENETUNREACH, "no way")


def many(host: str, is_host: bool | None = None, **more: str) -> ManyNodes:
    return ManyNodes(fewest=1, most=2, host=host, port=PORT, is_host=is_host, **more)  # type: ignore[arg-type]


def met(network: FakeNetwork, host: str, is_host: bool | None = None) -> str:
    """Return what the host listens on, or `guest of` whom."""
    with network.sockets:
        place = meet(many(host, is_host), network)
    return place.address if isinstance(place, Host) else f"guest of {','.join(place.addresses) or 'nobody yet'}"


# --- nobody was told who hosts --------------------------------------------------------------------------------------


def test_the_machine_that_has_the_address_hosts_and_others_are_its_guests() -> None:
    names = {"node0": ["10.0.0.1"]}
    assert met(FakeNetwork(["10.0.0.1"], names), "node0") == "10.0.0.1"
    assert met(FakeNetwork(["10.0.0.2"], names), "node0") == "guest of 10.0.0.1"
    assert met(FakeNetwork(["10.0.0.2"]), "10.0.0.1") == "guest of 10.0.0.1"


def test_the_second_on_the_hosts_machine_is_a_guest() -> None:
    assert met(FakeNetwork(["10.0.0.1"], taken=["10.0.0.1"]), "10.0.0.1") == "guest of 10.0.0.1"
    assert met(FakeNetwork(taken=["127.0.0.1"]), "127.0.0.1") == "guest of 127.0.0.1"


def test_the_second_finds_the_first_even_before_the_name_leads_there() -> None:
    assert met(FakeNetwork(["10.0.0.1"], taken=[ALL_V6]), "here") == "guest of 127.0.0.1,::1"


def test_the_machines_names_are_not_compared_where_addresses_tell() -> None:
    assert met(FakeNetwork(["10.0.0.2"], {"here": ["10.0.0.1"]}, name="here"), "here") == "guest of 10.0.0.1"


@pytest.mark.parametrize("addresses", [["127.0.1.1"], ["127.0.0.1"], ["::1"], ["127.0.1.1", "::1"]])
def test_a_host_whose_name_means_loopback_to_itself_listens_where_others_reach_it(addresses: list[str]) -> None:
    names = {"node0": addresses}
    assert met(FakeNetwork(["10.0.0.1"], names), "node0") == ALL_V6
    assert met(FakeNetwork(["10.0.0.1"], names, v6=False), "node0") == ALL_V4
    assert met(FakeNetwork(["10.0.0.1"], names, taken=[ALL_V6]), "node0").startswith("guest of ")


def test_a_loopback_beside_an_address_of_another_machine_makes_nobody_host() -> None:
    assert met(FakeNetwork(["10.0.0.2"], {"node0": ["10.0.0.1", "::1"]}), "node0") == "guest of 10.0.0.1,::1"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "localhost.localdomain"])
def test_nodes_of_one_machine_stay_on_it(host: str) -> None:
    assert met(FakeNetwork(["10.0.0.1"], {host: ["::1", "127.0.0.1"]}), host) == "127.0.0.1"
    assert met(FakeNetwork(["10.0.0.1"], {host: ["::1", "127.0.0.1"]}, taken=["127.0.0.1"]), host).startswith("guest")


def test_a_name_of_several_machines_makes_one_of_them_the_host_in_whatever_order_it_is_told() -> None:
    for told in (["10.0.0.3", "10.0.0.1", "10.0.0.12"], ["10.0.0.12", "10.0.0.3", "10.0.0.1"]):
        names = {"service": told}
        hosts = [own for own in told if met(FakeNetwork([own], names), "service") == own]
        assert hosts == ["10.0.0.1"]


def test_both_families_count() -> None:
    names = {"node0": ["fd00::1", "10.0.0.1"]}
    assert met(FakeNetwork(["fd00::1"], names), "node0") == "fd00::1"
    assert met(FakeNetwork(["fd00::1", "10.0.0.1"], names), "node0") == "10.0.0.1"


@pytest.mark.parametrize(
    ("endpoint", "name", "outcome"),
    [
        ("node0", "node0", ALL_V6),
        ("Node0.", "node0.cluster.local", ALL_V6),
        ("job-0.jobs.svc", "job-0", ALL_V6),
        ("node0", "node01", "guest of nobody yet"),
        ("node0.a", "node0.b", "guest of nobody yet"),
    ],
)
def test_a_name_that_leads_nowhere_yet_is_compared(endpoint: str, name: str, outcome: str) -> None:
    assert met(FakeNetwork(["10.0.0.1"], name=name), endpoint) == outcome


# --- somebody was told ----------------------------------------------------------------------------------------------


def test_a_node_that_shall_host_does_whatever_the_name_means() -> None:
    assert met(FakeNetwork(["10.0.0.1"]), "10.0.0.1", is_host=True) == "10.0.0.1"
    assert met(FakeNetwork(["10.0.0.1"]), "10.9.9.9", is_host=True) == ALL_V6
    assert met(FakeNetwork(["10.0.0.1"], v6=False), "service", is_host=True) == ALL_V4


def test_a_node_that_shall_not_host_does_not_try() -> None:
    network = FakeNetwork(["10.0.0.1"])
    assert met(network, "10.0.0.1", is_host=False) == "guest of 10.0.0.1"
    assert met(network, "nowhere", is_host=False) == "guest of nobody yet"
    assert network.tried == []


def test_a_node_that_must_host_and_cannot_says_so() -> None:
    with pytest.raises(UserError) as caught:
        met(FakeNetwork(["10.0.0.1"], taken=["10.0.0.1"]), "10.0.0.1", is_host=True)
    assert str(caught.value) == (
        f"this node shall host the controller at 10.0.0.1:{PORT}, but the port is taken; choose another port"
    )


@pytest.mark.parametrize("is_host", [None, True])
def test_a_port_that_may_not_be_listened_on_is_no_matter_of_who_hosts(is_host: bool | None) -> None:
    network = FakeNetwork(["10.0.0.1"])
    network.trouble = errno.EACCES
    with pytest.raises(UserError, match="choose a port from 1024"):
        met(network, "10.0.0.1", is_host)
    network.trouble = errno.EMFILE
    with pytest.raises(PlatformError, match=r"cannot listen at 10\.0\.0\.1:29500: Too many open files"):
        met(network, "10.0.0.1", is_host)


# --- where workers are reached --------------------------------------------------------------------------------------


def address(network: FakeNetwork, job: ManyNodes, controller: str = "") -> str:
    with network.sockets:
        return own_address(job, meet(job, network), network, controller)


def test_workers_are_reached_as_the_user_says() -> None:
    assert address(FakeNetwork(["10.0.0.1"]), many("10.0.0.1", local_addr="ib0.node0")) == "ib0.node0"


def test_workers_of_the_host_are_reached_where_it_is() -> None:
    assert address(FakeNetwork(["10.0.0.1"]), many("10.0.0.1")) == "10.0.0.1"
    assert address(FakeNetwork(), many("127.0.0.1")) == "127.0.0.1"


def test_workers_of_a_host_that_is_loopback_to_itself_are_reached_by_its_name() -> None:
    names = {"node0": ["127.0.1.1"]}
    assert address(FakeNetwork(["10.0.0.1"], names), many("node0")) == "node0"
    assert address(FakeNetwork(["10.0.0.1"], names, taken=[ALL_V6]), many("node0"), "127.0.1.1") == "node0"
    assert address(FakeNetwork(["10.0.0.1"]), many("here")) == "here"


def test_workers_of_a_host_behind_another_address_are_reached_at_its_own() -> None:
    assert address(FakeNetwork(["10.0.0.1"], {"service": ["10.0.9.9"]}), many("service", True)) == "10.0.0.1"
    network = FakeNetwork(["10.0.0.1"], {"service": ["10.0.9.9"]})
    assert address(network, many("service", True), "127.0.0.1") == "10.0.0.1", "where its own agent dials says nothing"


def test_workers_of_a_guest_are_reached_at_its_address_on_the_way_to_the_controller() -> None:
    network = FakeNetwork(["10.0.0.2", "192.168.0.2"])
    assert address(network, many("10.0.0.1"), "10.0.0.1") == "10.0.0.2"
    assert address(network, many("192.168.0.1"), "192.168.0.1") == "192.168.0.2"


# --- the order of addresses -----------------------------------------------------------------------------------------


def test_addresses_have_one_order_on_all_nodes() -> None:
    expected = ("9.0.0.1", "10.0.0.1", "10.0.0.12", "fd00::1", "127.0.0.1", "::1")
    assert in_order(expected) == in_order(expected[::-1]) == in_order((*expected[3:], *expected)) == expected


# --- this machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", socket.gethostname()])
def test_of_the_real_agents_of_a_machine_the_first_hosts_and_the_second_can_connect(host: str) -> None:
    job = ManyNodes(fewest=2, most=2, host=host, port=unused_port())
    first = meet(job, SystemNetwork())
    assert isinstance(first, Host)
    with first.socket:
        second = meet(job, SystemNetwork())
        assert isinstance(second, Guest)
        for address in (first.addresses[0], second.addresses[0]):
            socket.create_connection((address, job.port), timeout=10).close()


def test_a_real_port_is_free_again_at_once() -> None:
    job = ManyNodes(fewest=2, most=2, host="127.0.0.1", port=unused_port())
    first = meet(job, SystemNetwork())
    assert isinstance(first, Host)
    with first.socket:
        client = socket.create_connection(("127.0.0.1", job.port), timeout=10)
        server, _ = first.socket.accept()
        server.close()  # the side that closes first is left in TIME_WAIT
        client.close()
    second = meet(job, SystemNetwork())
    assert isinstance(second, Host)
    second.socket.close()


def test_a_real_host_on_all_interfaces_is_reached_by_both_families() -> None:
    network = SystemNetwork()
    try:
        listening = network.listen(ALL_V6, 0)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listening:
        port = listening.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            try:
                socket.create_connection((address, port), timeout=10).close()
            except OSError as error:
                if address == "127.0.0.1":
                    raise
                pytest.skip(f"no ::1 here: {error}")


def test_another_machines_address_is_not_listened_on() -> None:
    job = ManyNodes(fewest=2, most=2, host="192.0.2.1", port=unused_port())  # an address that is nobody's (RFC 5737)
    assert meet(job, SystemNetwork()) == Guest(addresses=("192.0.2.1",), port=job.port)


def test_the_real_network_knows_ways_and_names() -> None:
    network = SystemNetwork()
    assert network.address_towards("127.0.0.1") == "127.0.0.1"
    assert network.resolve("127.0.0.1") == ("127.0.0.1",)
    assert network.resolve("no-such-name.invalid") == ()
    assert network.resolve("a" * 300) == ()
    assert network.host_name() == socket.gethostname()
