"""How much memory buffers may take, and what is said where it is too little."""

from __future__ import annotations

import pytest

from robust_run.ckpt_io.memory.budget import GroupFacts, MemoryFacts, Room, gib, most_buffers, refusal, room, rounded

GIB = 1 << 30
NODE = MemoryFacts(total_bytes=100 * GIB, available_bytes=40 * GIB)


def group(limit: int, used: int, reclaimable: int = 0) -> GroupFacts:
    return GroupFacts(
        name="/g/memory.max", limit_bytes=limit * GIB, used_bytes=used * GIB, reclaimable_bytes=reclaimable * GIB
    )


def with_group(limit: int, used: int, reclaimable: int = 0) -> MemoryFacts:
    return MemoryFacts(total_bytes=100 * GIB, available_bytes=40 * GIB, groups=(group(limit, used, reclaimable),))


@pytest.mark.parametrize(
    ("facts", "limit", "taken", "promised", "expected", "why"),
    [
        (MemoryFacts(), None, 0, 0, None, "nothing is known about the memory of this node"),
        (NODE, None, 0, 0, 35 * GIB, "the node has 40.0 GiB available, 5.0 GiB of which stay free"),
        (NODE, None, 7 * GIB, 10 * GIB, 25 * GIB, "the node has 40.0 GiB available"),  # what is taken the kernel counts
        (NODE, 8 * GIB, 3 * GIB, 1 * GIB, 4 * GIB, "--ckpt-memory allows 8.0 GiB"),
        (NODE, 0, 0, 0, 0, "--ckpt-memory allows 0.0 MiB"),
        (NODE, 2 * GIB, 3 * GIB, 0, 0, "--ckpt-memory allows 2.0 GiB"),
        (
            with_group(20, 10),
            None,
            0,
            0,
            9 * GIB,
            "/g/memory.max leaves 10.0 GiB of 20.0 GiB, 1.0 GiB of which stay free",
        ),
        (with_group(20, 15, 5), None, 0, 2 * GIB, 7 * GIB, "/g/memory.max leaves 10.0 GiB"),
        (with_group(20, 25), None, 0, 0, 0, "/g/memory.max leaves 0.0 MiB of 20.0 GiB"),
        (with_group(90, 10), None, 0, 0, 35 * GIB, "the node has 40.0 GiB available"),
        (
            MemoryFacts(available_bytes=GIB),
            None,
            0,
            0,
            768 << 20,
            "the node has 1.0 GiB available, 0.2 GiB of which stay free",
        ),
    ],
)
def test_the_least_of_all_limits_holds(
    facts: MemoryFacts, limit: int | None, taken: int, promised: int, expected: int | None, why: str
) -> None:
    found = room(facts, limit, taken, promised)
    assert found.bytes == expected
    assert found.because.startswith(why) or found.because.endswith(why)


def test_as_many_buffers_as_there_is_room_for() -> None:
    assert most_buffers(Room(bytes=None, because=""), GIB, 3) == 3
    assert [most_buffers(Room(bytes=size, because=""), GIB, 3) for size in (0, GIB - 1, 2 * GIB, 9 * GIB)] == [
        0,
        0,
        2,
        3,
    ]


def test_the_refusal_says_what_is_needed_what_there_is_and_what_to_do() -> None:
    found = room(NODE, 2 * GIB, GIB)
    assert refusal(found, 3, 3, GIB, GIB) == (
        "too little memory for checkpoints of rank 3: 3 buffers of 1.0 GiB are needed, "
        "1.0 GiB may be used (--ckpt-memory allows 2.0 GiB, 1.0 GiB are taken); "
        "give the job more memory, or save fewer tensors"
    )
    assert "taken" not in refusal(room(NODE, 0, 0), 0, 3, GIB, 0)


@pytest.mark.parametrize("size", [1, 4096, 1 << 20, (1 << 30) + 1])
def test_a_buffer_has_room_for_a_slightly_larger_part(size: int) -> None:
    assert rounded(size) > size and rounded(size) % (1 << 20) == 0
    assert rounded(size) <= size * 1.02 + (2 << 20)


def test_sizes_are_written_for_people() -> None:
    assert [gib(size) for size in (0, 1 << 20, GIB, GIB // 2)] == ["0.0 MiB", "1.0 MiB", "1.0 GiB", "0.5 GiB"]
