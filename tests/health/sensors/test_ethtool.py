"""Statistics of a network driver: frames of priority flow control."""

from __future__ import annotations

import errno
import struct
import subprocess
from collections.abc import Callable

import pytest
from sensor_ground import Tree

from robust_run.health.sensors.links.ethtool import DriverStatistics, Pauses, pauses
from robust_run.health.sensors.links.network import read
from robust_run.health.sensors.numbers.measures import of_network
from robust_run.health.sensors.types import SensorWorld


@pytest.mark.parametrize(
    "statistics",
    [
        {
            "rx_prio0_pause": 1,
            "rx_prio3_pause": 4,
            "tx_prio3_pause": 7,
            "tx_prio3_pause_duration": 99,
            "rx_pause_ctrl_phy": 50,
        },
        {"rx_pfc_ena_frames_pri0": 1, "rx_pfc_ena_frames_pri3": 4, "tx_pfc_ena_frames_pri3": 7, "rx_pause_frames": 50},
        {"rx_priority_3_xoff.nic": 5, "tx_priority_0_xoff.nic": 7, "tx_priority_0_xon.nic": 9},
        {"port.rx_priority_3_xoff": 5, "port.tx_priority_0_xoff": 7},
        {"rx_pause_ctrl_phy": 5, "tx_pause_ctrl_phy": 7},
    ],
)
def test_each_driver_has_its_own_names_for_them(statistics: dict[str, int]) -> None:
    assert pauses(statistics) == Pauses(sent=7, received=5)


def test_a_driver_that_counts_none_is_not_known_to_have_none() -> None:
    assert pauses({"rx_queue_0_packets": 5, "tx_pauses": 3}) is None
    assert pauses({}) is None


class StubCard:
    """A driver whose statistics are these."""

    def __init__(self, **statistics: int) -> None:
        self.statistics = statistics
        self.asked: list[int] = []

    def __call__(self, interface: str, request: bytearray) -> bytes:
        if interface != "eth0":
            raise OSError(errno.ENODEV, "No such device")
        command = struct.unpack_from("=I", request)[0]
        self.asked.append(command)
        if command == 0x37:
            return struct.pack("=IIQI", command, 0, 2, len(self.statistics))
        if command == 0x1B:
            return bytes(request[:12]) + b"".join(name.encode().ljust(32, b"\0") for name in self.statistics)
        return bytes(request[:8]) + struct.pack(f"={len(self.statistics)}Q", *self.statistics.values())


def test_names_are_asked_for_once_and_again_when_there_are_more() -> None:
    card = StubCard(rx_prio3_pause=1)
    ask = DriverStatistics(card)
    assert ask("eth0") == {"rx_prio3_pause": 1}
    card.statistics["rx_prio3_pause"] = 5
    assert ask("eth0") == {"rx_prio3_pause": 5}
    assert card.asked.count(0x1B) == 1
    card.statistics["tx_prio3_pause"] = 2
    assert ask("eth0") == {"rx_prio3_pause": 5, "tx_prio3_pause": 2}


def test_what_cannot_be_asked_says_nothing() -> None:
    assert DriverStatistics(StubCard())("eth0") == {}
    assert DriverStatistics(StubCard(a=1))("eth9") == {}
    assert DriverStatistics(lambda *_: b"")("eth0") == {}
    assert DriverStatistics()("no-such-interface-of-this-machine") == {}


def test_the_sensor_tells_how_often_this_node_asked_for_a_pause(tree: Tree, world: SensorWorld) -> None:
    tree.write(sys__class__net__eth0__operstate="up\n", sys__class__net__eth0__device__vendor="x")
    tree.write(sys__class__net__bond0__operstate="up\n")
    card = {"eth0": {"tx_prio3_pause": 10, "rx_prio3_pause": 99}, "bond0": {"tx_prio3_pause": 10}}
    asking = SensorWorld(proc=world.proc, sys=world.sys, pid=7, driver_statistics=lambda name: card[name])
    before = read(asking)
    card["eth0"]["tx_prio3_pause"] = 30
    after = read(asking)
    assert before.links["bond0"].pauses is None  # its frames are those of the cards behind it
    assert of_network(before, after, 2.0)["pfc_tx_packets_per_s"] == 10.0
    assert "pfc_tx_packets_per_s" not in of_network(None, after, 2.0)


def test_a_real_driver_answers(private: Callable[..., subprocess.Popen[str]]) -> None:
    process = private(
        "--net",
        """if True:
        import subprocess
        from robust_run.health.sensors.links.ethtool import DriverStatistics
        subprocess.run("ip link add ours type veth peer name theirs".split(), check=True)
        found = DriverStatistics()("ours")
        print("peer_ifindex" in found, len(found) > 3, DriverStatistics()("lo"))
        """,
    )
    assert process.communicate(timeout=60)[0].split() == ["True", "True", "{}"]
