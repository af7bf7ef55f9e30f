"""Where what a rank saves lies in its logical file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.rules.segments import lay_out

sizes = st.lists(st.integers(0, 20_000), max_size=20)


@given(sizes, sizes)
def test_segments_are_aligned_and_apart_and_end_with_the_file(tensors: list[int], objects: list[int]) -> None:
    tensor_offsets, object_offsets, total = lay_out(tensors, objects)
    end = 0
    for offset, size in zip([*tensor_offsets, *object_offsets], [*tensors, *objects], strict=True):
        assert offset >= end
        end = offset + size
    assert total == end
    assert all(offset % 4096 == 0 for offset, size in zip(tensor_offsets, tensors, strict=True) if size)
    assert all(offset % 64 == 0 for offset, size in zip(object_offsets, objects, strict=True) if size)


def test_many_small_objects_lie_close_together() -> None:
    assert lay_out([100, 4096], [1, 70, 5]) == ([0, 4096], [8192, 8256, 8384], 8389)
