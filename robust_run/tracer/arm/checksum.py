"""Adds up a part of a tensor so that one flipped bit shows, and nothing else does, and keeps that in a file. `sitecustomize`
loads this file by its path.

The bits of so many elements are added up, each with an odd weight of its own, as whole numbers modulo 2**64. Two numbers that are
equal have the same bits here: -0.0 counts as 0.0, and every NaN as the same one, since which of two is handed on depends on the
order. Nothing here makes the program or its GPU wait: what a GPU adds up is fetched later.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Elements of which a checksum is made: some 0.15 ms of one CPU. Larger tensors are gone through in turns.
WINDOW = 1 << 16
#: As robust_run.tracer.reduced.types has them: a test keeps the two equal.
DTYPES = ("", "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
_BITS = {"float32": "int32", "float64": "int64", "float16": "int16", "bfloat16": "int16"}
#: Of a GPU, so many may be on their way.
SLOTS = 16

#: The file's layout is that of `robust_run.tracer.files.reduced`: a test keeps the two equal.
MAGIC = b"RBREDUC\n"
VERSION = 1
RECORDS, RECORD_CELLS, RECORDS_AT_CELL = 64, 12, 8
FILE_BYTES = 8 * (RECORDS_AT_CELL + RECORDS * RECORD_CELLS)
MAGIC_CELL, VERSION_CELL, PID_CELL, STATE_CELL, COUNT_CELL, EVERY_CELL = range(6)
UNARMED, ARMED, GIVEN_UP = range(3)

pack = struct.Struct("=11Q").pack_into


class Sums:
    """Checksums of tensors of one process."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.codes = {getattr(torch, name): code for code, name in enumerate(DTYPES) if name}
        self.bits = {getattr(torch, name): getattr(torch, bits) for name, bits in _BITS.items()}
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.weights: dict[Any, Any] = {}  # by device
        self.pinned: Any = None  # where GPUs put what they have added up
        self.free = list(range(SLOTS))

    def can(self, tensor: Any) -> bool:
        """Whether a tensor can be added up here and now, and nobody would notice."""
        torch = self.torch
        if type(tensor) not in self.plain or tensor.is_inference() or tensor.layout is not torch.strided:
            return False
        if tensor.dtype not in self.codes or not tensor.numel() or not tensor.is_contiguous():
            return False
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or tensor.is_neg():
            return False
        if tensor.device.type == "cpu":
            return True
        # A graph would make it part of itself, and another GPU than the current one has its own streams.
        on_current = tensor.device.type == "cuda" and tensor.device.index == torch.cuda.current_device()
        return on_current and not torch.cuda.is_current_stream_capturing() and bool(self.free)

    def window(self, numel: int, turn: int) -> tuple[int, int]:
        """Return first element and number of those that are added up: the same on all ranks for the same `turn`."""
        windows = (numel + WINDOW - 1) // WINDOW
        start = (turn * 2654435761 >> 13) % windows * WINDOW
        return start, min(WINDOW, numel - start)

    def add_up(self, tensor: Any, start: int, length: int) -> Any:
        """Return the checksum as a tensor of one whole number."""
        torch = self.torch
        with torch.no_grad(), torch._C.DisableTorchFunction():
            part = tensor.detach().reshape(-1)[start : start + length]
            if part.is_floating_point():
                bits = (part + 0).view(self.bits[part.dtype])
                bits.masked_fill_(part != part, 7)  # noqa: PLR0124 - NaN
            else:
                bits = part
            weights = self.weights.get(tensor.device)
            if weights is None:
                odd = torch.arange(1, 2 * WINDOW, 2, dtype=torch.int64, device=tensor.device)
                weights = self.weights[tensor.device] = odd
            return (bits.to(torch.int64) * weights[:length]).sum()

    def fetch(self, total: Any) -> Fetched:
        """Return where the number will be."""
        return Fetched(self, total)


class Fetched:
    """A checksum on its way from where it was made."""

    def __init__(self, sums: Sums, total: Any) -> None:
        self.sums = sums
        self.number: int | None = None
        if total.device.type == "cpu":
            self.number = int(total) & 0xFFFFFFFFFFFFFFFF
            return
        torch = sums.torch
        if sums.pinned is None:
            sums.pinned = torch.empty(SLOTS, dtype=torch.int64, pin_memory=True)
        self.slot = sums.free.pop()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            sums.pinned[self.slot : self.slot + 1].copy_(total.reshape(1), non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record()

    def look(self) -> int | None:
        """Return the checksum; None while it is on its way."""
        if self.number is None and not self.sums.torch.cuda.is_current_stream_capturing() and self.event.query():
            self.number = int(self.sums.pinned[self.slot]) & 0xFFFFFFFFFFFFFFFF
            self.sums.free.append(self.slot)
        return self.number


class ReducedFile:
    """The file of reduced values of this worker, mapped."""

    def __init__(self, path: str) -> None:
        """Raises OSError, or ValueError if the file is not as it should be."""
        import mmap

        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size < FILE_BYTES:
                raise ValueError(f"{path} is shorter than {FILE_BYTES} bytes")
            self.octets = memoryview(mmap.mmap(descriptor, FILE_BYTES))
        finally:
            os.close(descriptor)
        self.cells = self.octets.cast("Q")
        if bytes(self.octets[: len(MAGIC)]) != MAGIC or self.cells[VERSION_CELL] != VERSION:
            raise ValueError(f"{path} is not a file of reduced values of version {VERSION}")
        self.every = self.cells[EVERY_CELL]

    def claim(self) -> bool:
        """Begin to write, unless another process of this worker has."""
        if self.cells[PID_CELL] in (0, os.getpid()):
            self.cells[PID_CELL] = os.getpid()
            self.cells[STATE_CELL] = ARMED
            return True
        return False

    def write(self, *values: int) -> None:
        """Add a record of ten values."""
        cells = self.cells
        count = cells[COUNT_CELL]
        place = RECORDS_AT_CELL + RECORD_CELLS * (count % RECORDS)
        cells[place + RECORD_CELLS - 1] = 0
        pack(self.octets, 8 * place, *values, 0)
        cells[place + RECORD_CELLS - 1] = cells[COUNT_CELL] = count + 1

    def give_up(self) -> None:
        """Note that nothing more comes."""
        self.cells[STATE_CELL] = GIVEN_UP
