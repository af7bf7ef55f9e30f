"""Hot lists: recorded, merged over ranks and launches, and turned into what is fetched in which order."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import BlockMap, BlockRun, HotKey, HotList, HotRange, Touch

MIB = 1 << 20
KEY = HotKey(image="1" * 64, launch="abc", machine="x86_64")


def image(blocks: int) -> BlockMap:
    return BlockMap(size_bytes=blocks * MIB, sha256="0" * 64, digests=bytes(16 * blocks))


def listed(*ranges: HotRange) -> HotList:
    return HotList(key=KEY, window_s=1.0, launches=1, ranges=ranges)


def nothing(_block: int) -> bool:
    return False


def test_of_several_ranks_the_first_to_touch_counts() -> None:
    assert hotlist.union([[Touch(1, 50), Touch(2, 5)], [Touch(1, 20)]]) == [Touch(1, 20), Touch(2, 5)]


def test_neighbours_that_were_read_together_become_one_range() -> None:
    found = hotlist.merged(None, KEY, [Touch(7, 10), Touch(8, 12), Touch(9, 900), Touch(3, 500)], 2.0)
    assert found.launches == 1
    assert found.ranges == (HotRange(7, 2, 10, 1.0), HotRange(3, 1, 500, 1.0), HotRange(9, 1, 900, 1.0))


def test_what_is_not_read_any_more_fades_and_drops_out() -> None:
    found = hotlist.merged(None, KEY, [Touch(1, 10), Touch(50, 20)], 1.0)
    weights = []
    for _ in range(3):
        found = hotlist.merged(found, KEY, [Touch(1, 11)], 1.0)
        weights.append({entry.start: entry.weight for entry in found.ranges})
    assert weights == [{1: 1.0, 50: 0.5}, {1: 1.0, 50: 0.25}, {1: 1.0}]
    assert found.launches == 4


def test_what_is_read_again_has_full_weight_again() -> None:
    found = hotlist.merged(listed(HotRange(5, 1, 100, 0.25)), KEY, [Touch(5, 30)], 1.0)
    assert found.ranges == (HotRange(5, 1, 30, 1.0),)


def test_the_list_of_another_image_is_not_continued() -> None:
    old = listed(HotRange(5, 1, 100, 1.0))
    other = msgspec.structs.replace(KEY, image="2" * 64)
    assert hotlist.merged(old, other, [Touch(1, 1)], 1.0).ranges == (HotRange(1, 1, 1, 1.0),)


def test_what_several_nodes_of_a_launch_read_counts_as_one_launch() -> None:
    old = hotlist.merged(None, KEY, [Touch(1, 10), Touch(70, 70)], 1.0, "monday")
    first = hotlist.merged(old, KEY, [Touch(1, 12), Touch(20, 20)], 2.0, "tuesday")
    both = hotlist.merged(first, KEY, [Touch(1, 11), Touch(20, 25), Touch(70, 71), Touch(30, 30)], 1.5, "tuesday")
    assert (both.launches, both.window_s) == (2, 2.0)
    found = {hot.start: (hot.first_touch_ms, hot.weight) for hot in both.ranges}
    assert found == {1: (11, 1.0), 20: (20, 1.0), 30: (30, 1.0), 70: (71, 1.0)}
    again = hotlist.merged(first, KEY, [Touch(1, 12)], 1.0, "tuesday")
    assert {hot.start: hot.weight for hot in again.ranges} == {1: 1.0, 20: 1.0, 70: hotlist.DECAY}, (
        "nothing decays twice"
    )
    assert hotlist.merged(first, KEY, [Touch(1, 12)], 1.0).launches == 3, "an unnamed launch is always another one"
    assert hotlist.decode(hotlist.encode(both)) == both


def test_blocks_are_fetched_in_the_order_of_first_touch() -> None:
    hot = listed(HotRange(8 * 9, 1, 50, 1.0), HotRange(8 * 2, 1, 10, 1.0), HotRange(8 * 5, 1, 30, 1.0))
    assert [run.start for run in hotlist.plan(hot, image(20), nothing)] == [2, 5, 9]


def test_neighbours_are_fetched_with_one_request_of_limited_size() -> None:
    hot = listed(HotRange(0, 8 * 12, 10, 1.0))
    assert hotlist.plan(hot, image(20), nothing) == [BlockRun(0, 8, 10), BlockRun(8, 4, 10)]
    assert hotlist.plan(hot, image(20), nothing, run_bytes=5 * MIB)[0] == BlockRun(0, 5, 10)


def test_a_neighbour_that_is_needed_much_later_does_not_go_first() -> None:
    hot = listed(HotRange(0, 8, 10, 1.0), HotRange(8, 8, 5000, 1.0), HotRange(16 * 8, 8, 400, 1.0))
    assert [run.start for run in hotlist.plan(hot, image(20), nothing)] == [0, 16, 1]


def test_what_is_there_already_is_left_out() -> None:
    hot = listed(HotRange(0, 8 * 5, 10, 1.0))
    assert hotlist.plan(hot, image(20), lambda block: block == 2) == [BlockRun(0, 2, 10), BlockRun(3, 2, 10)]


def test_a_budget_leaves_out_what_is_needed_last() -> None:
    hot = listed(HotRange(0, 8, 10, 1.0), HotRange(80, 8, 20, 1.0), HotRange(40, 8, 30, 1.0))
    assert [run.start for run in hotlist.plan(hot, image(20), nothing, limit_bytes=2 * MIB)] == [0, 10]


def test_a_list_of_a_longer_image_is_clipped() -> None:
    hot = listed(HotRange(8 * 3, 80, 10, 1.0), HotRange(1 << 30, 1000, 10, 1.0))
    assert hotlist.plan(hot, image(4), nothing) == [BlockRun(3, 1, 10)]


def test_of_small_blocks_whole_stretches_are_fetched() -> None:
    small = BlockMap(size_bytes=5 * MIB - 9, block_bytes=MIB // 8, sha256="0" * 64, digests=bytes(16 * 40))
    hot = listed(HotRange(8 * 2 + 5, 1, 10, 1.0), HotRange(8 * 4 + 7, 1, 20, 1.0))
    assert hotlist.plan(hot, small, nothing) == [BlockRun(16, 8, 10), BlockRun(32, 8, 20)]


def test_a_list_is_read_as_it_was_written_with_a_line_for_each_range() -> None:
    hot = listed(HotRange(1, 2, 3, 0.5), HotRange(9, 1, 4, 1.0))
    data = hotlist.encode(hot)
    assert hotlist.decode(data) == hot
    assert data.decode().splitlines()[1:3] == ["[1,2,3,0.5],", "[9,1,4,1.0]"]
    assert hotlist.decode(hotlist.encode(listed())) == listed()


@pytest.mark.parametrize(
    "row",
    [
        [-1, 1, 0, 1.0],
        [0, 0, 0, 1.0],
        [0, -4, 0, 1.0],
        [0, 1 << 30, 0, 1.0],
        [1 << 50, 1, 0, 1.0],
        [0, 1, -1, 1.0],
        [0, 1, 0, 0.0],
        [0, 1, 0, 7.0],
        [0, 1],
        ["0", 1, 0, 1.0],
    ],
)
def test_a_range_that_cannot_be_is_refused(row: list[object]) -> None:
    good = json.loads(hotlist.encode(listed(HotRange(1, 2, 3, 0.5))))
    with pytest.raises(HotListRefused, match=r"^a\.json: "):
        hotlist.decode(json.dumps(good | {"ranges": [row]}).encode(), "a.json")


def test_many_small_ranges_cannot_exhaust_us() -> None:
    good = json.loads(hotlist.encode(listed()))
    rows = [[0, hotlist.MOST_QUANTA, 0, 1.0]] * 2
    with pytest.raises(HotListRefused, match="more than"):
        hotlist.decode(json.dumps(good | {"ranges": rows}).encode())


@given(st.binary(max_size=300))
def test_bytes_that_are_no_list_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(HotListRefused):
        hotlist.decode(data)


_touches = st.lists(st.builds(Touch, st.integers(0, 300), st.integers(0, 10_000)), max_size=60)


@given(st.lists(_touches, min_size=1, max_size=4), st.integers(1, 40), st.sets(st.integers(0, 39)), st.integers(1, 9))
def test_a_plan_fetches_each_hot_block_once_and_nothing_else(
    launches: list[list[Touch]], blocks: int, present: set[int], run_blocks: int
) -> None:
    hot: HotList | None = None
    for touches in launches:
        hot = hotlist.decode(hotlist.encode(hotlist.merged(hot, KEY, hotlist.union([touches]), 1.0)))
    assert hot is not None
    assert {touch.quantum for touch in launches[-1]} <= {
        quantum for entry in hot.ranges for quantum in range(entry.start, entry.start + entry.count)
    }
    runs = hotlist.plan(hot, image(blocks), present.__contains__, run_bytes=run_blocks * MIB)
    fetched = [block for run in runs for block in range(run.start, run.start + run.count)]
    assert sorted(fetched) == sorted(set(hotlist.hot_blocks(hot, image(blocks))) - present)
    assert all(run.count <= run_blocks for run in runs)
    assert [run.first_touch_ms for run in runs] == sorted(run.first_touch_ms for run in runs)
