"""A buffer that is filled at once: what it takes is on the ledger, and in the end it is as all buffers are."""

from __future__ import annotations

import fcntl
import os

import pytest

from robust_run.ckpt_io.memory.budget import MemoryFacts
from robust_run.ckpt_io.memory.buffers import Ledger, NoRoom
from robust_run.ckpt_io.memory.copies.filling import Filling

MIB = 1 << 20
LIMIT_BYTES = 256 * MIB


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryFacts, LIMIT_BYTES)


def left(ledger: Ledger) -> int:
    """How many MiB may still be promised."""
    count = ledger.promise(0, MIB, LIMIT_BYTES // MIB, 0)
    ledger.give_back(0, count * MIB)
    return count


def test_one_that_is_settled_has_all_its_memory_and_keeps_its_length(ledger: Ledger) -> None:
    filling = Filling(ledger, 0, 100 * MIB)
    assert os.fstat(filling.descriptor).st_blocks == 0, "nothing is taken before it is written"
    assert left(ledger) == 156, "but it is promised"
    for at in range(0, 90 * MIB, MIB):
        os.pwrite(filling.descriptor, b"x" * MIB, at)
        filling.wrote(at + MIB)
        assert left(ledger) == 156
    filling.settle(90 * MIB)
    assert os.fstat(filling.descriptor).st_blocks * 512 == os.fstat(filling.descriptor).st_size == 100 * MIB
    for size_bytes in (0, 200 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(filling.descriptor, size_bytes)
    assert fcntl.fcntl(filling.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL
    assert left(ledger) == 156
    os.close(filling.descriptor)
    ledger.give_back(100 * MIB)
    assert left(ledger) == 256


@pytest.mark.parametrize("written_mib", [0, 10, 70, 100])
def test_one_that_is_dropped_gives_back_what_it_took_and_what_was_promised(ledger: Ledger, written_mib: int) -> None:
    filling = Filling(ledger, 0, 100 * MIB)
    filling.wrote(written_mib * MIB)
    filling.drop()
    assert left(ledger) == 256
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(filling.descriptor)


def test_one_that_is_dropped_after_it_was_settled_gives_all_back(ledger: Ledger) -> None:
    filling = Filling(ledger, 0, MIB)
    filling.settle(0)
    filling.drop()
    assert left(ledger) == 256


def test_what_may_not_be_taken_is_refused_before_anything_comes(ledger: Ledger) -> None:
    with pytest.raises(NoRoom, match="too little memory for checkpoints of rank 3"):
        Filling(ledger, 3, LIMIT_BYTES + MIB)
    assert left(ledger) == 256
