"""Memory: a state as this rank's part in a buffer of the node's keeper, which outlives the rank.

What costs time is the copy of the tensors into buffers that are mapped already. So tensors over a buffer are made once (see
`places`) and used again as long as the state has the same tensors; between two steps only the index in front of them differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch

from robust_run.checkpoint import together
from robust_run.checkpoint.fitting import Fitting
from robust_run.checkpoint.layouts import layout_of, local_of
from robust_run.checkpoint.places import Part, Places, tensor_over
from robust_run.checkpoint.rules.encoding import decode, encode
from robust_run.checkpoint.rules.settings import Generation
from robust_run.checkpoint.types import SavedTensor, Values
from robust_run.ckpt_io.dcp.to_host import copy_to_host
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.memory import segment
from robust_run.ckpt_io.memory.client import HeldPart, MemoryClient, Skipped
from robust_run.ckpt_io.memory.types import PartIndex, TensorEntry
from robust_run.ckpt_io.rules.boxes import box_bytes

#: Room for values that get longer, so that buffers are not made anew for it.
_SLACK_BYTES = 1 << 20


@dataclass
class Memory:
    """This rank's connection, and what it keeps from step to step."""

    client: MemoryClient
    rank: int
    world_size: int
    attempt: int
    places: Places
    left_out: int = -1
    """The last step that is not kept because not every step is, on any node: one that follows soon is."""
    _reserved_bytes: int = 0
    _saved: tuple[SavedTensor, ...] = ()
    _placed: tuple[TensorEntry, ...] = ()
    _layout: segment.PartLayout | None = None

    def save(self, values: Values, tensors: Sequence[torch.Tensor]) -> bool:
        """Copy a state; False: the keeper has no buffer for it yet, nothing is wrong.

        Raises:
            MemoryUnavailable: There is too little memory, or the keeper is gone.
        """
        layout = self._laid_out(values)
        if layout.used_bytes > self._reserved_bytes:
            self.places.clear()  # or what was reserved before would stay mapped
            self._reserved_bytes = layout.used_bytes + _SLACK_BYTES
        buffer = self.client.begin(values.step, self._reserved_bytes, values.stream)
        if isinstance(buffer, Skipped):
            self.left_out = values.step if buffer.is_planned else self.left_out
            return False
        segment.write_head(buffer.view, layout, self.attempt, values.step, self.rank, self.world_size)
        with torch.no_grad():
            local = [local_of(tensor) for tensor in tensors]
            part = Part(self._saved, self._placed, layout.payload_at)
            is_on_gpu = any(tensor.device.type == "cuda" for tensor in local)
            copy_to_host(self.places.over(buffer, part, pin=is_on_gpu), local)
        self.client.copied(buffer, layout.used_bytes)
        return True

    def _laid_out(self, values: Values) -> segment.PartLayout:
        """Lay out a part: as the one before if the tensors are the same and the index has room in front of them."""
        data = encode(values)
        if self._layout is not None and values.tensors == self._saved:
            index = msgspec.msgpack.encode(PartIndex(tensors=self._placed, values=data))
            if segment.HEAD_BYTES + len(index) <= self._layout.payload_at:
                return msgspec.structs.replace(self._layout, index=index)
        entries = [
            (each.name, each.dtype, each.local_shape, box_bytes(each.local_shape, each.dtype))
            for each in values.tensors
        ]
        self._layout = segment.layout(entries, data)
        rows = zip(entries, self._layout.offsets, strict=True)
        self._placed = tuple(TensorEntry(*entry[:3], offset, entry[3]) for entry, offset in rows)
        self._saved = values.tensors
        return self._layout

    def close(self) -> None:
        """Hang up, and let go of what was made over buffers. Whoever has a part of this rank keeps it."""
        self.places.clear()
        self.client.close()


def load(
    client: MemoryClient, generation: Generation, state: dict[str, Any], stream: str | None = None
) -> Values | None:
    """Load this rank's part of a generation into the state; all ranks take part. None: it is of another stream than this one.

    Raises:
        CheckpointError: It is not there, is not what was saved, or another rank has that trouble.
        UserError: It does not fit the state.
    """
    part = open_part(client, generation, stream)
    if part is None:
        return None
    with closing(part):
        fitting, places = together.all_or_none(lambda: _fit(part, state))
        together.all_or_none(partial(_take_over, fitting, places))
        del places
    return part.values


@dataclass(frozen=True)
class OpenPart:
    """This rank's part of a generation, verified. Its buffer is not used again until it is closed."""

    held: HeldPart
    index: PartIndex
    values: Values

    @property
    def stream(self) -> str:
        """The folder that it belongs to."""
        return self.values.stream

    def tensor(self, number: int) -> torch.Tensor:
        """Return what this rank has of a tensor, as it lies in the buffer."""
        return tensor_over(self.held.view, self.index.tensors[number])

    def close(self) -> None:
        """Let it go; never raises."""
        _close(self.held)


def open_part(client: MemoryClient, generation: Generation, stream: str | None) -> OpenPart | None:
    """Open this rank's part of a generation; all ranks take part. None: it is of another stream than this one.

    Raises:
        CheckpointError: It is not there, is not what was saved, or another rank has that trouble.
    """
    held = together.all_or_none(lambda: _fetch(client, generation))
    try:
        index, values = together.all_or_none(lambda: _read(held, generation))
        is_another = together.any_say_yes(stream is not None and values.stream != stream)[0]
    except BaseException:
        _close(held)
        raise
    if is_another:
        _close(held)
        return None
    return OpenPart(held, index, values)


def _close(held: HeldPart) -> None:
    with suppress(BufferError):  # of an error that still holds what was read
        held.close()


def _take_over(fitting: Fitting, places: list[torch.Tensor]) -> None:
    numbers = list(fitting.targets)
    with torch.no_grad():
        _copy([local_of(fitting.targets[each]) for each in numbers], [places[each] for each in numbers])
    fitting.settle()


def _fetch(client: MemoryClient, generation: Generation) -> HeldPart:
    held = client.fetch(generation.attempt, generation.step)
    if held is None:
        raise CheckpointError(
            f"the memory keeper holds no part of this rank of attempt {generation.attempt}, {_at(generation)}"
        )
    return held


def _read(held: HeldPart, generation: Generation) -> tuple[PartIndex, Values]:
    """Verify a part."""
    index = segment.read(held.view, held.used_bytes, held.digest)
    values = decode(index.values, f"the part of {_at(generation)} in memory")
    mine, saved = (values.rank, values.world_size), together.rank_and_size()
    if mine != saved or values.step != generation.step:
        raise CheckpointError(
            f"memory has step {values.step} of rank {mine[0]} of {mine[1]}, and this is rank {saved[0]} of {saved[1]} "
            f"at {_at(generation)}: start from storage, which can be spread anew"
        )
    said = [(entry.name, entry.dtype, tuple(entry.shape)) for entry in index.tensors]
    if said != [(each.name, each.dtype, each.local_shape) for each in values.tensors]:
        raise CheckpointError(f"the part of {_at(generation)} in memory contradicts itself")
    return index, values


def _fit(part: OpenPart, state: dict[str, Any]) -> tuple[Fitting, list[torch.Tensor]]:
    """Find where a part goes. Nothing is touched yet."""
    fitting = Fitting(part.values, state)
    for number, target in fitting.targets.items():
        each = part.values.tensors[number]
        if layout_of(target) != each.layout:
            raise CheckpointError(
                f"{each.name} is spread as {layout_of(target)} and was as {each.layout}: memory holds it in that layout only; "
                "start from storage, which can be spread anew"
            )
    return fitting, [part.tensor(number) for number in range(len(part.index.tensors))]


def _at(generation: Generation) -> str:
    return f"step {generation.step}"


def _copy(into: list[torch.Tensor], out_of: list[torch.Tensor]) -> None:
    """Copy tensors, each as a whole. On one device that is one call for all of them, elsewhere one a tensor."""
    if not into:
        return
    if all(tensor.device.type == "cpu" for tensor in (*into, *out_of)):
        torch._foreach_copy_(into, out_of)
        return
    for target, source in zip(into, out_of, strict=True):
        target.copy_(source)
