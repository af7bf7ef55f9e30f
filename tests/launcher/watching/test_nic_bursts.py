"""NICs compared over half a second, in slices of 10 ms."""

from __future__ import annotations

from pathlib import Path

from robust_run.health.signs.nic_bursts import NicBurst, joined, judge
from robust_run.launcher.agent.nccl import nic_bursts

STEADY = (1_000_000,) * 50
BURSTY = (2_000_000, 0) * 25
TWICE = (5_000_000, *[0] * 4) * 10


def burst(*nics: tuple[int, ...], marks: int = 0) -> NicBurst:
    moved = {f"mlx5_{number}/1": slices for number, slices in enumerate(nics)}
    return NicBurst(length_s=0.5, moved=moved, marks={"mlx5_1/1": marks})


WELL = burst(STEADY, STEADY, STEADY)


def test_nics_that_are_alike_say_nothing() -> None:
    assert judge(WELL, WELL) == ()
    assert judge(burst(BURSTY, BURSTY, BURSTY), WELL) == ()  # all in the rhythm of the steps
    assert judge(burst(*[(0,) * 50] * 3), WELL) == ()  # nothing goes on
    assert judge(burst(STEADY), burst(STEADY)) == ()  # there is no peer


def test_a_nic_that_moves_nothing_among_peers_that_do() -> None:
    (line,) = judge(burst(STEADY, (0,) * 50, STEADY), WELL)
    assert line == f"NIC mlx5_1/1 moves nothing, its peers 100 MB/s ({'·' * 24}, its peers {'█' * 24})"
    unused = burst(STEADY, (0,) * 50, STEADY)
    assert judge(unused, unused) == ()


def test_a_nic_that_moves_less_than_it_did_with_its_marks() -> None:
    (line,) = judge(burst(STEADY, (400_000,) * 50, STEADY, marks=70), WELL)
    said, _, drawn = line.partition(" (")
    assert said == "NIC mlx5_1/1 moves 40% of what its peers do, 100% before; 70 marks of congestion, 0 before"
    assert drawn == f"{'▄' * 24}, its peers {'█' * 24})"
    less = burst(STEADY, (400_000,) * 50, STEADY)
    assert judge(less, less) == ()  # it always did
    assert judge(WELL, None) == ()


def test_a_nic_that_fluctuates_where_its_peers_do_not() -> None:
    (line,) = judge(burst(STEADY, TWICE, STEADY), WELL)
    assert line.startswith("NIC mlx5_1/1 fluctuates: by 200% from slice to slice, its peers by 0% (")
    assert "·" in line.partition("(")[2], "pauses are seen in what is drawn"
    assert judge(burst(STEADY, TWICE, STEADY), burst(STEADY, TWICE, STEADY)) == ()


def test_one_that_moves_less_and_fluctuates_is_said_to_do_both() -> None:
    (line,) = judge(burst(STEADY, (2_000_000, *[0] * 9) * 5, STEADY), WELL)
    assert "moves 20% of what its peers do, 100% before, and fluctuates: by 300%" in line
    assert len(line) < 300, "so long may it be to travel"


def test_bursts_of_one_suspicion_are_judged_together() -> None:
    both = joined([burst(STEADY, STEADY, STEADY, marks=1), burst(STEADY, (0,) * 50, STEADY, marks=2)])
    assert (both.length_s, len(both.moved["mlx5_1/1"]), both.marks["mlx5_1/1"]) == (1.0, 100, 3)
    (line,) = judge(both, WELL)
    assert "moves 50% of what its peers do" in line
    assert f"({'█' * 12}{'·' * 12}, its peers {'█' * 24})" in line


class Passing:
    """A clock that only sleeping moves, while a port moves data."""

    def __init__(self, counter: Path) -> None:
        self.now_s, self.counter = 0.0, counter

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, length_s: float) -> None:
        self.now_s += length_s
        self.counter.write_text(f"{int(self.counter.read_text()) + 250}\n")


def test_ports_are_read_a_hundred_times_a_second(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "hw_counters").mkdir()
    (port / "counters/port_xmit_data").write_text("1000\n")
    (port / "hw_counters/rp_cnp_handled").write_text("7\n")
    clock = Passing(port / "counters/port_xmit_data")
    found = nic_bursts.take(str(tmp_path), clock.monotonic_s, clock.sleep)
    assert found is not None
    assert found.moved == {"mlx5_0/1": (1000,) * 50}  # words of four bytes; what is not there counts nothing
    assert found.length_s == 0.5 or abs(found.length_s - 0.5) < 1e-6
    assert found.marks == {"mlx5_0/1": 0}


def test_network_interfaces_where_there_is_no_rdma(tmp_path: Path) -> None:
    for name, device in (("eth0", True), ("veth1", False)):
        statistics = tmp_path / f"class/net/{name}/statistics"
        statistics.mkdir(parents=True)
        (statistics / "tx_bytes").write_text("5\n")
        if device:
            (tmp_path / f"class/net/{name}/device").mkdir()
    clock = Passing(tmp_path / "class/net/eth0/statistics/tx_bytes")
    found = nic_bursts.take(str(tmp_path), clock.monotonic_s, clock.sleep)
    assert found is not None
    assert found.moved == {"eth0": (250,) * 50}
    assert nic_bursts.take(str(tmp_path / "nothing"), clock.monotonic_s, lambda _: None) is None


def test_frames_that_ask_for_a_pause_are_marks_of_congestion(tmp_path: Path) -> None:
    """Of an Ethernet card; of a port of RDMA its interfaces' frames count with its own marks."""
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "counters/port_xmit_data").write_text("0\n")
    (tmp_path / "class/infiniband/mlx5_0/device/net/ens1").mkdir(parents=True)
    clock = Passing(port / "counters/port_xmit_data")
    asked: list[str] = []

    def driver_statistics(name: str) -> dict[str, int]:
        asked.append(name)
        return {"rx_prio3_pause": 10 * len(asked), "tx_prio3_pause": 1}

    found = nic_bursts.take(str(tmp_path), clock.monotonic_s, clock.sleep, driver_statistics)
    assert found is not None
    assert found.marks == {"mlx5_0/1": 10}
    assert asked == ["ens1", "ens1"]
