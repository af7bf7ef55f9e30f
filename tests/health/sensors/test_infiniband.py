"""InfiniBand ports, and silence on the network, as a tree like /sys/class/infiniband shows them."""

from __future__ import annotations

import pytest
from sensor_ground import Tree

from robust_run.health.sensors.links import traffic
from robust_run.health.sensors.links.infiniband import Port, PortsState, judge, read
from robust_run.health.sensors.links.traffic import TrafficSample, TrafficState
from robust_run.health.sensors.settings import InfinibandSettings, TrafficSettings
from robust_run.health.sensors.types import AbsentError, Event, SensorWorld

SETTINGS = InfinibandSettings()
GOOD = Port(
    active=True, state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", downs=0, errors={"symbol_error": 0}, traffic_bytes=0
)


def port(**changes: object) -> Port:
    values = {name: getattr(GOOD, name) for name in GOOD.__struct_fields__}
    return Port(**{**values, **changes})


def said(*samples: tuple[float, dict[str, Port]]) -> list[Event]:
    state, events = PortsState(), []
    for now_s, sample in samples:
        state, new = judge(SETTINGS, state, sample, now_s)
        events += new
    return events


def test_a_port_is_read_with_its_counters(tree: Tree, world: SensorWorld) -> None:
    folder = "sys/class/infiniband/mlx5_0/ports/1"
    tree.put(f"{folder}/state", "4: ACTIVE\n")
    tree.put(f"{folder}/phys_state", "5: LinkUp\n")
    tree.put(f"{folder}/rate", "400 Gb/sec (4X NDR)\n")
    tree.put(f"{folder}/counters/link_downed", "2\n")
    tree.put(f"{folder}/counters/symbol_error", "9\n")
    tree.put(f"{folder}/counters/port_xmit_data", "100\n")
    tree.put(f"{folder}/counters/port_rcv_data", "50\n")
    found = read(world)
    assert list(found) == ["mlx5_0/1"]
    assert found["mlx5_0/1"].active
    assert found["mlx5_0/1"].errors == {"symbol_error": 9}
    assert (found["mlx5_0/1"].downs, found["mlx5_0/1"].traffic_bytes) == (2, 600)


def test_a_node_without_infiniband_says_so_once(world: SensorWorld) -> None:
    with pytest.raises(AbsentError, match="no InfiniBand"):
        read(world)


def test_a_port_that_is_not_active_any_more_is_down() -> None:
    down = port(active=False, state="1: DOWN, 3: Disabled")
    events = said((0, {"mlx5_0/1": GOOD}), (2, {"mlx5_0/1": down}))
    assert [event.name for event in events] == ["network.link_down"]
    assert "1: DOWN" in events[0].detail


def test_a_port_that_was_down_at_first_is_not_in_use() -> None:
    down = port(active=False)
    assert said((0, {"mlx5_0/1": down}), (2, {"mlx5_0/1": down})) == []


def test_a_port_that_is_slower_than_at_first_is_said() -> None:
    events = said((0, {"p": GOOD}), (2, {"p": port(rate="100 Gb/sec (1X NDR)")}))
    assert [event.name for event in events] == ["network.link_slow"]


def test_a_port_that_went_down_and_came_back_flapped() -> None:
    assert [event.name for event in said((0, {"p": GOOD}), (2, {"p": port(downs=1)}))] == ["network.link_flap"]


def test_errors_that_go_on_are_said_and_a_single_burst_is_not() -> None:
    growing = [(2.0 * turn, {"p": port(errors={"symbol_error": 100 * turn})}) for turn in range(5)]
    burst = [(2.0 * turn, {"p": port(errors={"symbol_error": 100 if turn else 0})}) for turn in range(5)]
    assert [event.name for event in said(*growing)] == ["network.errors"]
    assert said(*burst) == []


def silence(training: bool, quiet_from_s: float, until_s: float) -> list[Event]:
    state, events, moved = TrafficState(), [], 0
    now_s = 0.0
    while now_s <= until_s:
        sample = TrafficSample(moved_bytes=moved, over="RDMA ports", training=training)
        state, new = traffic.judge(TrafficSettings(), state, sample, now_s)
        events += new
        now_s += 5
        moved += 5 * (10**9 if now_s <= quiet_from_s else 10**5)
    return events


def test_ten_minutes_of_silence_while_training_are_said() -> None:
    assert silence(training=True, quiet_from_s=60, until_s=600) == []
    events = silence(training=True, quiet_from_s=60, until_s=700)
    assert [event.name for event in events] == ["network.silent"]
    assert "0.10 MB/s, it was up to 1000 MB/s" in events[0].detail


def test_silence_is_no_wonder_where_nothing_trains() -> None:
    assert silence(training=False, quiet_from_s=60, until_s=1200) == []


def test_a_job_that_never_used_its_network_is_not_silent() -> None:
    assert silence(training=True, quiet_from_s=0, until_s=1200) == []
