"""What a rank has to save, and writing it as one logical file.

Tensors on the CPU in C order are written as they lie in memory, by several threads. Others (on a GPU, or strided) must be copied
first; when there are many of them, they are copied one after the other and written as a stream, so that memory stays bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType

from robust_run.ckpt_io.dcp.tensors import byte_view, dtype_name, has_plain_bytes, on_host
from robust_run.ckpt_io.rules.segments import Segment, StoredItem, lay_out
from robust_run.ckpt_io.rules.types import LogicalFile
from robust_run.ckpt_io.saving import FilePiece, SavePlan, open_file, write_file

#: Of copies that are in memory at once; with more to copy, the file is written as a stream.
COPIES_BYTES = 1 << 30
_ZEROS = memoryview(bytes(4096))


@dataclass(frozen=True)
class SavedItem:
    """One item to be saved: a tensor as the planner gave it, or the bytes of an object as a tensor of them."""

    index: MetadataIndex
    tensor: torch.Tensor
    is_object: bool

    @property
    def size_bytes(self) -> int:
        """As stored."""
        return int(self.tensor.numel() * self.tensor.element_size())

    @property
    def as_it_lies(self) -> bool:
        """Whether its memory can be written without a copy."""
        return self.tensor.device.type == "cpu" and has_plain_bytes(self.tensor)

    def buffer(self) -> memoryview:
        """Return its bytes: its own memory where possible, else a copy.

        Raises:
            UserError: It cannot be saved.
        """
        return byte_view(on_host(self.tensor, self.index.fqn))


def resolve(items: Sequence[WriteItem], planner: SavePlanner) -> list[SavedItem]:
    """Return what the plan's items are. The dtype that counts is that of the tensor the planner gives, not the planned one."""
    sources = []
    for item in items:
        value = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            data = bytearray(value.getbuffer())
            tensor = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            sources.append(SavedItem(item.index, tensor, is_object=True))
        else:
            sources.append(SavedItem(item.index, value.detach(), is_object=False))
    return sources


def write(
    save: SavePlan,
    file: int,
    name: str,
    sources: Sequence[SavedItem],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    copies_bytes: int = COPIES_BYTES,
) -> list[StoredItem]:
    """Write a logical file and return, for each source in its order, where it lies.

    Raises:
        UserError: A tensor cannot be saved.
        TargetLost: A target is full, read-only or gone.
    """
    dtypes = [dtype_name(source.tensor.dtype, source.index.fqn) for source in sources]
    order = sorted(range(len(sources)), key=lambda number: sources[number].is_object)
    ordered = [sources[number] for number in order]
    tensors = sum(not source.is_object for source in sources)
    sizes = [source.size_bytes for source in ordered]
    tensor_offsets, object_offsets, size_bytes = lay_out(sizes[:tensors], sizes[tensors:])
    offsets = [*tensor_offsets, *object_offsets]
    rows = list(zip(offsets, ordered, strict=True))
    item_bytes = _item_bytes(sources)
    if sum(source.size_bytes for source in sources if not source.as_it_lies) <= copies_bytes:
        found = [FilePiece(offset, source.buffer()) for offset, source in rows if source.size_bytes]
        logical = write_file(
            save, file, name, found, size_bytes, item_bytes=item_bytes, threads=threads, progress=progress
        )
    else:
        logical = _stream(save, file, name, rows, item_bytes, progress)
    at = dict(zip(order, offsets, strict=True))
    return [
        StoredItem(Segment(file, at[number], source.size_bytes, dtypes[number], tuple(source.tensor.shape)), logical)
        for number, source in enumerate(sources)
    ]


def _stream(
    save: SavePlan,
    file: int,
    name: str,
    rows: Sequence[tuple[int, SavedItem]],
    item_bytes: int,
    progress: Callable[[int], None] | None,
) -> LogicalFile:
    stream = open_file(save, file, name, item_bytes=item_bytes)
    try:
        at_bytes = 0
        for offset, source in rows:
            for part in chain(_gap(offset - at_bytes if source.size_bytes else 0), (source.buffer(),)):
                stream.write(part)
                at_bytes += len(part)
                if progress is not None:
                    progress(len(part))
        return stream.finish()
    except BaseException:
        stream.abort()
        raise


def _gap(size_bytes: int) -> Iterator[memoryview]:
    while size_bytes > 0:
        yield _ZEROS[: min(size_bytes, len(_ZEROS))]
        size_bytes -= len(_ZEROS)


def _item_bytes(sources: Sequence[SavedItem]) -> int:
    """Return the width of the elements that most bytes are of: what a codec that looks for patterns should know."""
    widths: Counter[int] = Counter()
    for source in sources:
        widths[source.tensor.element_size()] += source.size_bytes
    return max(widths, key=lambda width: (widths[width], -width), default=1)
