"""`checkpoint.save` of a state on a GPU into page-locked buffers, with a real CUDA: the bytes are right, and it is fast."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():
    pytest.skip("there is no NVIDIA GPU here (/dev/nvidiactl)", allow_module_level=True)
import torch

if not torch.cuda.is_available():
    pytest.skip(f"torch {torch.__version__} has no CUDA or no device of it", allow_module_level=True)

from robust_run.checkpoint.places import Part, Places
from robust_run.checkpoint.types import SavedTensor
from robust_run.ckpt_io.dcp.pinning import Pinned, cudart
from robust_run.ckpt_io.dcp.to_host import copy_to_host
from robust_run.ckpt_io.memory.client import Buffer
from robust_run.ckpt_io.memory.types import TensorEntry

COUNT = 1 << 24
AT = 4096


@pytest.fixture
def buffer() -> Iterator[Buffer]:
    """As the keeper hands one out: a memfd, mapped shared."""
    torch.zeros(1, device="cuda")
    size_bytes = AT + 4 * COUNT
    descriptor = os.memfd_create("part")
    os.truncate(descriptor, size_bytes)
    yield Buffer(view=memoryview(mmap.mmap(descriptor, size_bytes)), id=0, step=1)
    os.close(descriptor)


def test_what_a_gpu_has_is_copied_into_a_page_locked_buffer_bit_for_bit(buffer: Buffer) -> None:
    said: list[str] = []
    places = Places(said.append)
    part = Part((SavedTensor("t", "float32", (COUNT,)),), (TensorEntry("t", "float32", (COUNT,), AT, 4 * COUNT),), AT)
    (place,) = places.over(buffer, part, pin=True)
    assert said == [] and place.is_pinned()
    for round_number in range(20):
        # Made by kernels that are still on their way when the copy begins; and gone right after it.
        source = torch.arange(COUNT, device="cuda", dtype=torch.float32) % 1000
        for _ in range(20):
            source += 1
        copy_to_host([place], [source])
        source.fill_(-1)
        assert torch.equal(place, torch.arange(COUNT, dtype=torch.float32) % 1000 + 20), round_number
    places.clear()
    assert not place.is_pinned()
    copy_to_host([place], [torch.full((COUNT,), 5.0, device="cuda")])
    assert place.eq(5).all()


def test_what_is_turned_or_conjugate_on_a_gpu_is_copied_as_it_reads() -> None:
    turned = torch.randn(300, 500, device="cuda").t()
    conjugate = torch.randn(1000, dtype=torch.complex64, device="cuda").conj()
    into = [torch.empty(500, 300).pin_memory(), torch.empty(1000, dtype=torch.complex64).pin_memory()]
    copy_to_host(into, [turned, conjugate])
    assert torch.equal(into[0], turned.cpu()) and torch.equal(into[1], conjugate.cpu().resolve_conj())


def test_a_refused_registration_leaves_no_error_for_the_next_kernel(buffer: Buffer) -> None:
    at = torch.frombuffer(buffer.view, dtype=torch.uint8).data_ptr()
    first = Pinned(at, len(buffer.view), cudart())
    again = Pinned(at, len(buffer.view), cudart())
    assert first.is_pinned and not again.is_pinned
    assert torch.ones(3, device="cuda").sum().item() == 3
    first.close()
