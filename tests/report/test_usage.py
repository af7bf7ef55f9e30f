"""What is kept of how full and busy nodes were: bounded, thinned with age, and never without its extremes."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.report.files import usage as file
from robust_run.report.usage import (
    FEW_NODES,
    LARGEST_BYTES,
    MOST_POINTS,
    SAID,
    UsageHistory,
    UsagePoint,
    added,
    point_of,
)

MEMORY = "memory_used_percent"
CPU = "cpu_percent"


def row(memory: float, cpu: float = 50.0, *gpus: float) -> tuple[float, ...]:
    """What a node says."""
    return (cpu, memory, 0.0, 0.0, *gpus)


def point(begin_s: float, end_s: float, *memory: float) -> UsagePoint:
    found = point_of(begin_s, end_s, {f"gpu-{index}": row(value) for index, value in enumerate(memory)})
    assert found is not None
    return found


def history(*lengths_s: float, most: int = MOST_POINTS, memory: tuple[float, ...] = ()) -> tuple[UsagePoint, ...]:
    points: tuple[UsagePoint, ...] = ()
    at_s = 1000.0
    for index, length_s in enumerate(lengths_s):
        points = added(points, point(at_s, at_s + length_s, memory[index] if memory else float(index % 90)), most)
        at_s += length_s
    return points


def test_of_few_nodes_each_is_kept_and_of_many_the_extremes_with_their_names() -> None:
    few = point(0.0, 10.0, 30.0, 90.0, 50.0).spreads[MEMORY]
    assert few.nodes == {"gpu-0": 30.0, "gpu-1": 90.0, "gpu-2": 50.0}
    many = point(0.0, 10.0, *(40.0 + n / 1000 for n in range(10_000)), 99.0).spreads[MEMORY]
    assert (many.low, many.high, many.low_node, many.high_node) == (40.0, 99.0, "gpu-0", "gpu-10000")
    assert many.middle == pytest.approx(45.0)
    assert many.nodes == {}


def test_what_a_node_does_not_know_is_in_no_figure() -> None:
    """A node without GPUs says nothing of them; one whose driver does not tell says so; nonsense is no number."""
    found = point_of(0.0, 10.0, {"a": row(30.0), "b": row(40.0, 50.0, 71.0, -1.0, float("nan")), "c": (1.0,)})
    assert found is not None
    assert found.spreads["gpu_memory_percent"].nodes == {"b": 71.0}
    assert set(found.spreads) == {CPU, MEMORY, "gpu_memory_percent", "disk_bytes_per_s", "rdma_bytes_per_s"}
    assert point_of(0.0, 10.0, {}) is None
    assert point_of(10.0, 10.0, {"a": row(30.0)}) is None


@given(
    lengths=st.lists(st.floats(0.5, 1000.0), min_size=1, max_size=60),
    most=st.integers(1, 12),
    memory=st.lists(st.integers(0, 100), min_size=60, max_size=60),
)
def test_a_history_is_bounded_ordered_without_gaps_and_keeps_its_extremes(
    lengths: list[float], most: int, memory: list[int]
) -> None:
    values = tuple(map(float, memory[: len(lengths)]))
    points = history(*lengths, most=most, memory=values)
    assert len(points) == min(most, len(lengths))
    assert all(one.end_s == other.begin_s for one, other in itertools.pairwise(points))
    assert points[0].begin_s == 1000.0
    assert points[-1].end_s == pytest.approx(1000.0 + sum(lengths), abs=0.06), "to a tenth of a second"
    spreads = [each.spreads[MEMORY] for each in points]
    assert min(each.low for each in spreads) == min(values)
    assert max(each.high for each in spreads) == max(values)
    assert all(each.low <= each.middle <= each.high for each in spreads)
    assert max(each.nodes["gpu-0"] for each in spreads) == max(values), (
        "a node's own peak of memory is never smoothed away"
    )


def test_what_is_new_is_fine_and_what_is_old_is_coarse() -> None:
    points = history(*[10.0] * 2000)
    lengths = [each.end_s - each.begin_s for each in points]
    assert len(points) == MOST_POINTS
    assert lengths[-10:] == [10.0] * 10
    assert lengths[0] > 100.0
    shares = [length / (points[-1].end_s - each.begin_s) for length, each in zip(lengths, points, strict=True)]
    assert max(shares[:-20]) < 0.06, "none but the newest stands for more than a twentieth of its age"


def test_a_clock_that_was_set_back_does_not_stop_the_history() -> None:
    points = added(added((), point(5000.0, 5010.0, 1.0)), point(1000.0, 1010.0, 2.0))
    assert [each.begin_s for each in points] == [1000.0]
    again = added(points, point(1005.0, 1015.0, 3.0))
    assert [(each.begin_s, each.end_s) for each in again] == [(1000.0, 1010.0), (1010.0, 1015.0)]


def test_the_largest_history_is_as_small_as_is_said() -> None:
    name = "n" * 300
    rows = {f"{index}{name}": tuple(12.34 for _ in SAID) for index in range(FEW_NODES)}
    points: tuple[UsagePoint, ...] = ()
    for index in range(MOST_POINTS + 20):
        new = point_of(1_790_000_000.123 + index * 10, 1_790_000_010.123 + index * 10, rows)
        assert new is not None
        points = added(points, new)
    assert len(msgspec.json.encode(UsageHistory(points=points))) < LARGEST_BYTES


def test_a_file_is_read_as_it_was_written_and_nothing_else_is(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A run directory of an older robust-run has none; what is damaged, or of a later one, is no reason to draw no page."""
    path = tmp_path / file.NAME
    assert file.read(str(path)) == ()
    points = history(10.0, 10.0)
    file.write(str(path), points)
    assert file.read(str(path)) == points
    for wrong in (b"", b"{", b'{"schema":1,"points":[{"begin_s":1}]}', b'{"schema":2,"points":[]}', b"\xff"):
        path.write_bytes(wrong)
        assert file.read(str(path)) == ()
    path.unlink()
    path.mkdir()
    assert file.read(str(path)) == ()
