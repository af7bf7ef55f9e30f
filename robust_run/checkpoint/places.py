"""Tensors over the buffers of the keeper: made once a buffer, and page-locked where a GPU copies into them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from robust_run.checkpoint.types import SavedTensor
from robust_run.ckpt_io.dcp.pinning import Library, Pinned, cudart
from robust_run.ckpt_io.dcp.tensors import dtype_of
from robust_run.ckpt_io.memory.client import Buffer
from robust_run.ckpt_io.memory.types import TensorEntry


@dataclass(frozen=True)
class Part:
    """What a buffer is to hold, and where."""

    saved: tuple[SavedTensor, ...]
    placed: tuple[TensorEntry, ...]
    payload_at: int


@dataclass
class _Over:
    """Tensors over one buffer."""

    view: memoryview
    """It keeps the buffer mapped."""
    part: Part | None = None
    tensors: Sequence[torch.Tensor] = ()
    pinned: Pinned | None = None


class Places:
    """All that is made over the buffers of one connection."""

    def __init__(self, say: Callable[[str], None], library: Library = cudart) -> None:
        """`say` is told once if memory cannot be page-locked. `library`: see `Pinned`."""
        self._say, self._library = say, library
        self._over: dict[int, _Over] = {}
        self._is_told = False

    def over(self, buffer: Buffer, part: Part, *, pin: bool) -> Sequence[torch.Tensor]:
        """Return the tensors of a part over a buffer. `pin`: a GPU will copy into them."""
        found = self._over.get(buffer.id)
        if found is None or found.view is not buffer.view:
            if found is not None:
                _let_go(found)
            found = self._over[buffer.id] = _Over(buffer.view)
        if pin and found.pinned is None:
            found.pinned = self._pinned(buffer.view)
        if found.part is None or (found.part.payload_at, found.part.saved) != (part.payload_at, part.saved):
            found.part, found.tensors = part, [tensor_over(buffer.view, entry) for entry in part.placed]
        return found.tensors

    def clear(self) -> None:
        """Let all of it go: pages are unlocked, and what nobody else looks at is no longer mapped."""
        for each in self._over.values():
            _let_go(each)
        self._over.clear()

    def _pinned(self, view: memoryview) -> Pinned:
        library = self._library()
        pinned = Pinned(torch.frombuffer(view, dtype=torch.uint8, count=1).data_ptr(), len(view), library)
        if library is not None and not pinned.is_pinned and not self._is_told:
            self._is_told = True
            self._say(
                f"{len(view) >> 20} MiB of memory for checkpoints cannot be page-locked: copies from the GPU are slower"
            )
        return pinned


def _let_go(over: _Over) -> None:
    """Unlock the pages, as long as they are mapped."""
    if over.pinned is not None:
        over.pinned.close()


def tensor_over(view: memoryview, entry: TensorEntry) -> torch.Tensor:
    """Return the tensor whose bytes lie in a buffer."""
    dtype = dtype_of(entry.dtype)
    if not entry.nbytes:
        return torch.empty(entry.shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a part that is read cannot be written, and is not
        flat = torch.frombuffer(view, dtype=torch.uint8, count=entry.nbytes, offset=entry.offset)
        return flat.view(dtype).view(entry.shape)
