"""Tensors over buffers of the keeper: when they are page-locked, and when they are let go. With a CUDA that only takes notes."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import torch

from robust_run.checkpoint.places import Part, Places
from robust_run.checkpoint.types import SavedTensor
from robust_run.ckpt_io.memory.client import Buffer
from robust_run.ckpt_io.memory.types import TensorEntry

BYTES = 1 << 16


class Cuda:
    """A runtime that page-locks, or says that it cannot."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.locked: dict[int, int] = {}
        self.calls: list[str] = []

    def cudaHostRegister(self, at: int, size_bytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append("register")
        if self.answer == 0:
            self.locked[at] = size_bytes
        return self.answer

    def cudaHostUnregister(self, at: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append("unregister")
        with open("/proc/self/maps") as maps:
            assert any(line.startswith(f"{at:x}-") for line in maps), "it is not mapped any more"
        del self.locked[at]
        return 0


def buffer(number: int = 0, size_bytes: int = BYTES) -> Buffer:
    # Read-write and shared, as the keeper's; each a mapping that the kernel does not join with the next.
    return Buffer(view=memoryview(mmap.mmap(-1, size_bytes)), id=number, step=1)


def part(count: int = 2, payload_at: int = 4096) -> Part:
    names = [f"t{number}" for number in range(count)]
    return Part(
        tuple(SavedTensor(name, "float32", (16,)) for name in names),
        tuple(TensorEntry(name, "float32", (16,), payload_at + 64 * at, 64) for at, name in enumerate(names)),
        payload_at,
    )


def places(cuda: Any) -> tuple[Places, list[str]]:
    said: list[str] = []
    return Places(said.append, lambda: cuda), said


def test_without_a_gpu_nothing_is_page_locked() -> None:
    cuda = Cuda()
    found, said = places(cuda)
    found.over(buffer(), part(), pin=False)
    found.clear()
    assert cuda.calls == said == []


def test_a_buffer_is_page_locked_once_whatever_is_laid_over_it_and_as_a_whole() -> None:
    cuda = Cuda()
    found, said = places(cuda)
    one = buffer()
    first = found.over(one, part(), pin=True)
    assert found.over(one, part(), pin=True) is first
    assert found.over(one, part(3), pin=True) is not first
    found.over(one, part(3, payload_at=8192), pin=False)
    at = torch.frombuffer(one.view, dtype=torch.uint8).data_ptr()
    assert cuda.locked == {at: BYTES} and cuda.calls == ["register"] and said == []
    found.clear()
    found.clear()
    assert cuda.locked == {} and cuda.calls == ["register", "unregister"]


def test_a_buffer_is_unlocked_before_another_one_takes_its_place_and_while_it_is_mapped() -> None:
    cuda = Cuda()
    found, _ = places(cuda)
    for _ in range(3):
        found.over(buffer(), part(), pin=True)  # nobody else keeps the one before mapped
        assert len(cuda.locked) == 1
    assert cuda.calls == ["register", "unregister", "register", "unregister", "register"]
    found.clear()
    assert cuda.locked == {}


@pytest.mark.parametrize("cuda", [Cuda(2), object()], ids=["it refuses", "it has no such call"])
def test_what_cannot_be_page_locked_is_used_as_it_is_and_said_once(cuda: Any) -> None:
    found, said = places(cuda)
    for number in (0, 1, 0):
        one = found.over(buffer(number, 5 << 20), part(), pin=True)
        one[0].fill_(3)
    assert one[0].eq(3).all()
    assert said == ["5 MiB of memory for checkpoints cannot be page-locked: copies from the GPU are slower"]
    found.clear()
    assert "unregister" not in getattr(cuda, "calls", [])


def test_where_no_cuda_is_at_work_nothing_is_said() -> None:
    found, said = places(None)
    found.over(buffer(), part(), pin=True)
    assert said == []
