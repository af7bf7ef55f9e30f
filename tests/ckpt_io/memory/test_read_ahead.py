"""Pages of a part are mapped beside its digest: all of them, and nothing fails where that cannot be done."""

from __future__ import annotations

import mmap

import pytest

from robust_run.ckpt_io.memory.read_ahead import POPULATE_READ, STEP_BYTES, populate, read_ahead


class Pages:
    """Notes what the kernel is asked for; refuses after so many times."""

    def __init__(self, refuses_after: int = 1_000_000) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self._refuses_after = refuses_after

    def madvise(self, option: int, start: int, length: int, /) -> None:
        if len(self.asked) >= self._refuses_after:
            raise OSError(22, "Invalid argument")
        self.asked.append((option, start, length))


@pytest.mark.parametrize("size_bytes", [1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES + 4097])
def test_every_page_is_asked_for_once_from_the_beginning(size_bytes: int) -> None:
    pages = Pages()
    populate(pages, size_bytes)
    assert {option for option, _, _ in pages.asked} == {POPULATE_READ}
    ends = [0]
    for _, start, length in pages.asked:
        assert start == ends[-1] and 0 < length <= STEP_BYTES
        ends.append(start + length)
    assert ends[-1] == size_bytes


def test_a_kernel_that_does_not_know_it_is_asked_no_more_and_nothing_fails() -> None:
    pages = Pages(refuses_after=2)
    populate(pages, 10 * STEP_BYTES)
    assert len(pages.asked) == 2


def test_a_small_part_takes_no_thread() -> None:
    pages = Pages()
    assert read_ahead(pages, STEP_BYTES) is None
    assert pages.asked == []


def test_a_mapping_that_is_closed_meanwhile_ends_it() -> None:
    memory = mmap.mmap(-1, STEP_BYTES)
    memory.close()
    populate(memory, STEP_BYTES)
    assert memory.closed, "and nothing was raised"


def test_a_mapping_is_read_while_its_pages_are_mapped() -> None:
    memory = mmap.mmap(-1, STEP_BYTES + mmap.PAGESIZE)
    thread = read_ahead(memory, len(memory))
    assert thread is not None
    assert memory[-1] == 0
    thread.join()
    memory.close()
