"""What buffers may take: the least of what the node, its cgroups and people allow."""

from __future__ import annotations

import pytest

from robust_run.ckpt_io.memory.budget import GroupFacts, MemoryFacts, most_buffers, refusal, room

GIB = 1 << 30
NODE = MemoryFacts(total_bytes=100 * GIB, available_bytes=80 * GIB)
GROUP = GroupFacts(name="memory.max", limit_bytes=50 * GIB, used_bytes=30 * GIB, reclaimable_bytes=10 * GIB)
IN_GROUP = MemoryFacts(total_bytes=100 * GIB, available_bytes=80 * GIB, groups=(GROUP,))


@pytest.mark.parametrize(
    ("facts", "limit_gib", "taken_gib", "promised_gib", "wanted_gib"),
    [
        (NODE, None, 0, 0, 40),  # unasked: half of what is available
        (NODE, None, 20, 0, 30),  # what buffers have taken was available before
        (NODE, None, 0, 10, 30),
        (NODE, 200, 0, 0, 75),  # asked for: all but a margin of 5 %
        (NODE, 10, 4, 1, 5),
        (NODE, 10, 12, 0, 0),
        (IN_GROUP, None, 0, 0, 15),  # files of the group are given up
        (IN_GROUP, 200, 0, 0, 27.5),
        (MemoryFacts(total_bytes=GIB, available_bytes=0), 200, 0, 0, 0),
        (MemoryFacts(), 7, 0, 0, 7),
    ],
)
def test_room(facts: MemoryFacts, limit_gib: int | None, taken_gib: int, promised_gib: int, wanted_gib: float) -> None:
    limit_bytes = None if limit_gib is None else limit_gib * GIB
    assert room(facts, limit_bytes, taken_gib * GIB, promised_gib * GIB).bytes == wanted_gib * GIB


def test_nothing_is_known() -> None:
    found = room(MemoryFacts(), None, 0)
    assert found.bytes is None and most_buffers(found, 1 << 50, 3) == 3


def test_people_read_the_numbers() -> None:
    found = room(NODE, 4 * GIB, 0)
    assert most_buffers(found, 2 * GIB, 3) == 2
    assert refusal(found, 5, 3, 2 * GIB, 0) == (
        "too little memory for checkpoints of rank 5: 3 buffers of 2.0 GiB are needed, 4.0 GiB may be used (--ckpt-memory allows "
        "4.0 GiB); give the job more memory, or save fewer tensors"
    )
