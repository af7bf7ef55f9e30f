"""The memory of a warm process is put into huge pages where nearly all of it is there, and nothing else is."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.agent.warm.huge_pages import HUGE_BYTES, full_mappings

MAPPING = """\
{start:x}-{end:x} {mode} 00000000 00:00 0 {name}
Size: {size_kb} kB
Anonymous: {kb} kB
VmFlags: rd wr mr mw me ac
"""
FILLS_ITS_MEMORY = """
import os, re
from robust_run.launcher.agent.warm.huge_pages import collapse
def huge_kb():
    return int(re.search(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps_rollup").read())[1])
kept = [str(number) for number in range(1_000_000)]
def descriptors():
    return sorted(os.listdir("/proc/self/fd"))
before, opened, steps = huge_kb(), descriptors(), []
for done_bytes in collapse():
    steps.append(done_bytes)
    assert descriptors() == opened, "who is forked between two steps has no file of ours"
assert kept == [str(number) for number in range(1_000_000)]
print(steps[-1] >> 10 if steps else 0, huge_kb() - before)
"""


def mapping(start: int, size: int, kb: int, mode: str = "rw-p", name: str = "") -> str:
    return MAPPING.format(start=start, end=start + size, mode=mode, name=name, size_kb=size >> 10, kb=kb)


def test_the_heap_and_what_has_no_name_is_taken_from_one_whole_huge_page_to_the_next() -> None:
    heap = mapping(3 * HUGE_BYTES + 4096, 4 * HUGE_BYTES, 4 * HUGE_BYTES >> 10, name="[heap]")
    other = mapping(16 * HUGE_BYTES, 2 * HUGE_BYTES, 2 * HUGE_BYTES >> 10)
    assert list(full_mappings(heap + other)) == [
        range(4 * HUGE_BYTES, 7 * HUGE_BYTES, HUGE_BYTES),
        range(16 * HUGE_BYTES, 18 * HUGE_BYTES, HUGE_BYTES),
    ]


@pytest.mark.parametrize(
    "left_alone",
    [
        mapping(0, 4 * HUGE_BYTES, 2 * HUGE_BYTES >> 10),
        mapping(0, 4 * HUGE_BYTES, 4 * HUGE_BYTES >> 10, mode="r--p"),
        mapping(0, 4 * HUGE_BYTES, 4 * HUGE_BYTES >> 10, mode="rw-s"),
        mapping(0, 4 * HUGE_BYTES, 4 * HUGE_BYTES >> 10, name="/lib/libtorch_cpu.so"),
        mapping(0, 4 * HUGE_BYTES, 4 * HUGE_BYTES >> 10, name="[stack]"),
    ],
    ids=["half empty", "not written", "shared", "of a file", "stack"],
)
def test_huge_pages_neither_fill_what_is_empty_nor_touch_what_is_not_plain_memory(left_alone: str) -> None:
    assert list(full_mappings(left_alone)) == []


@given(st.integers(0, 1 << 34), st.integers(1, 1 << 26))
def test_they_lie_within_the_mapping(start: int, size: int) -> None:
    for addresses in full_mappings(mapping(start, size, size >> 10)):
        assert all(start <= address and address + HUGE_BYTES <= start + size for address in addresses)


def test_what_lies_there_stays_as_it_was() -> None:
    ran = subprocess.run([sys.executable, "-c", FILLS_ITS_MEMORY], capture_output=True, text=True, check=True)
    done_kb, now_huge_kb = map(int, ran.stdout.split())
    if not done_kb:
        pytest.skip("this kernel puts no memory into huge pages on request (Linux 6.1)")
    assert done_kb > 20_000
    assert now_huge_kb > 20_000
