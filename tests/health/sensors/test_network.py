"""Network links that fail, as trees show them and as a real kernel does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import msgspec
import pytest
from sensor_ground import LIMIT_S, Tree

from robust_run.health.sensors.links import network
from robust_run.health.sensors.links.network import InterfaceLink, NetworkSample, NetworkState, judge, read
from robust_run.health.sensors.settings import NetworkSettings
from robust_run.health.sensors.types import AbsentError, Event, SensorWorld

SETTINGS = NetworkSettings()
UP = InterfaceLink(up=True, is_device=True)
DOWN = InterfaceLink(up=False, is_device=True)


def said(*samples: tuple[float, NetworkSample], settings: NetworkSettings = SETTINGS) -> list[Event]:
    state, events = NetworkState(), []
    for now_s, sample in samples:
        state, new = judge(settings, state, sample, now_s)
        events += new
    return events


def links(**found: InterfaceLink) -> NetworkSample:
    return NetworkSample(links=found)


def test_a_link_that_goes_down_is_said_at_once_and_again_every_30_s_and_when_it_is_back() -> None:
    moments = [(float(now_s), links(eth0=DOWN if 5 <= now_s < 40 else UP)) for now_s in range(60)]
    events = said(*moments)
    assert [(event.name, event.kind, event.at_s) for event in events] == [
        ("network.link_down", "alert", 5),
        ("network.link_down", "alert", 35),
        ("network.link_down", "clear", 40),
    ]
    assert events[0].subject == "eth0"


def test_a_link_that_was_down_at_first_is_not_in_use() -> None:
    assert said((0, links(eth0=UP, eth1=DOWN)), (1, links(eth0=UP, eth1=DOWN))) == []


def test_a_link_that_disappears_is_down() -> None:
    assert [event.name for event in said((0, links(eth0=UP)), (1, links()))] == ["network.link_down"]


def test_links_without_hardware_are_not_watched_beside_hardware_but_are_in_a_container() -> None:
    tunnel = InterfaceLink(up=True)
    assert said((0, links(eth0=UP, wg0=tunnel)), (1, links(eth0=UP))) == []
    assert len(said((0, links(eth0=tunnel)), (1, links()))) == 1


def test_a_named_link_is_watched_even_if_it_was_down_at_first() -> None:
    sample = NetworkSample(links={"ib0": DOWN}, named=("ib0",))
    assert [event.name for event in said((0, sample))] == ["network.link_down"]


def test_a_link_that_came_back_between_two_looks_flapped() -> None:
    events = said((0, links(eth0=UP)), (1, links(eth0=msgspec.structs.replace(UP, downs=2))))
    assert [(event.name, event.value) for event in events] == [("network.link_flap", 2.0)]


def test_errors_must_last_before_they_are_said() -> None:
    moments = [
        (float(now_s), links(eth0=InterfaceLink(up=True, is_device=True, errors=50 * now_s))) for now_s in range(10)
    ]
    assert [event.at_s for event in said(*moments)] == [6]
    assert said(*moments[:6]) == []


def test_segments_sent_again_count_only_where_enough_is_sent() -> None:
    busy = [(float(now_s), NetworkSample(links={}, segments=1000 * now_s, resent=100 * now_s)) for now_s in range(30)]
    idle = [(float(now_s), NetworkSample(links={}, segments=10 * now_s, resent=5 * now_s)) for now_s in range(30)]
    assert [event.name for event in said(*busy)] == ["network.retransmits"]
    assert said(*idle) == []


def test_interfaces_are_read_from_sys_and_tcp_from_proc(tree: Tree, world: SensorWorld) -> None:
    tree.write(
        sys__class__net__eth0__operstate="up\n",
        sys__class__net__eth0__carrier="1\n",
        sys__class__net__eth0__device__vendor="x",
        sys__class__net__eth0__carrier_down_count="3\n",
        sys__class__net__eth0__statistics__rx_errors="2\n",
        sys__class__net__eth0__statistics__tx_errors="5\n",
        sys__class__net__veth1__operstate="up\n",
        sys__class__net__lo__operstate="unknown\n",
        proc__7__net__snmp="Tcp: OutSegs RetransSegs\nTcp: 90 10\n",
    )
    sample = read(world)
    assert sample.links == {"eth0": InterfaceLink(up=True, is_device=True, downs=3, errors=7)}
    assert (sample.segments, sample.resent) == (100, 10)


def test_a_machine_without_interfaces_has_nothing_to_watch(world: SensorWorld) -> None:
    with pytest.raises(AbsentError):
        read(world)


def test_a_real_link_that_is_cut_is_noticed(private: Callable[..., subprocess.Popen[str]]) -> None:
    """A network namespace with a cable of two ends; the far end is switched off, so ours loses its carrier."""
    process = private(
        "--net",
        "--mount",
        """if True:
        import json, subprocess, sys, time
        from robust_run.health.sensors.links import network
        from robust_run.health.sensors.settings import NetworkSettings
        from robust_run.health.sensors.types import SensorWorld
        run = lambda line: subprocess.run(line.split(), check=True)
        run("mount -t sysfs sysfs /sys")
        run("ip link add ours type veth peer name theirs")
        run("ip link set ours up")
        run("ip link set theirs up")
        deadline_s = time.monotonic() + 45  # the carrier comes a moment later
        while open("/sys/class/net/ours/carrier").read() != "1\\n" and time.monotonic() < deadline_s:
            time.sleep(0.01)
        world = SensorWorld(interfaces=("ours",))
        settings = NetworkSettings()
        state, before = network.judge(settings, network.NetworkState(), network.read(world), time.monotonic())
        run("ip link set theirs down")
        deadline_s = time.monotonic() + 45
        events = ()
        while not events and time.monotonic() < deadline_s:
            state, events = network.judge(settings, state, network.read(world), time.monotonic())
        print(json.dumps([[event.name, event.subject] for event in before + events]))
        """,
    )
    output, errors = process.communicate(timeout=LIMIT_S)
    if "ip link add" in errors or "mount" in errors:
        pytest.skip(f"no veth or sysfs here: {errors[-200:]}")
    assert json.loads(output) == [["network.link_down", "ours"]], errors
    assert network.sensor(SETTINGS).interval_s <= 5
