"""Check of one device: matrix products with known answers, products repeated bit by bit, memory by patterns.

A device that computes wrongly does so rarely (of one it is known that it erred once in 500 million products), so this runs
as many passes as there is time for, and says how many. Products of small integers are exact in floating point, so their
row and column sums are known without another device: sums over A·B equal A times the sums over B (algorithm-based fault
tolerance, Huang and Abraham 1984). Products of fractions use all bits of the arithmetic; they are compared with the first.

    echo '{"check": "compute", "node": "here", "device": "cpu", "seconds": 2}' | python -m robust_run.health.diagnostics.compute
"""

from __future__ import annotations

import time
from typing import Any

from robust_run.health.checks.types import CheckProgramOrder, Result
from robust_run.health.diagnostics.devices import Device, open_device
from robust_run.health.diagnostics.digests import are_same_bits, bits, digest, fractions, integers
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.program import PassCounter, Rate, main

#: Edge of the matrices: enough to keep the device busy, and sums that float32 holds exactly (edge * 8 * 8 < 2**24).
CPU_EDGE, CUDA_EDGE = 256, 4096
#: Bytes in turn; each cell holds each bit as 0 and as 1.
PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
#: Sentences about wrong results that are kept.
MOST_WRONG = 4


def measure(order: CheckProgramOrder, faults: Faults) -> Result:
    """Return the result of this device."""
    device = open_device(order.device)
    wrong: list[str] = []
    products = _Products(device, order.seed, faults)
    first_wrong = products.check_sums()
    if first_wrong:
        wrong.append(first_wrong)
    pace = PassCounter(order)
    digests: dict[str, int] = {}
    while pace.more():
        place = device.turn_to(pace.made)
        said = products.repeat()
        key = products.last_digest
        digests[key] = digests.get(key, 0) + 1
        if said and len(wrong) < MOST_WRONG:
            wrong.append(f"pass {pace.made}{f' on {place}' if place else ''}: {said}")
    figures = products.rate.figures("flop_per_s")
    memory_rate, memory_wrong = check_memory(device, order.size_bytes or _default_bytes(device), faults)
    figures |= memory_rate.figures("memory_bytes_per_s")
    wrong += memory_wrong[:MOST_WRONG]
    if wrong and len(digests) > 1:
        wrong.append(f"{sum(digests.values()) - max(digests.values())} of {pace.made} passes differ from the others")
    return Result(
        check=order.check,
        node=order.node,
        device=order.device,
        outcome="done",
        kind=device.kind,
        figures=figures,
        others_by_figure={**products.rate.others_cpus, **memory_rate.others_cpus},
        passes=pace.made,
        digests=_most_frequent(digests),
        wrong=tuple(wrong),
    )


class _Products:
    """The matrices of one device, and what their products must be."""

    def __init__(self, device: Device, seed: int, faults: Faults) -> None:
        torch = device.torch
        self._device, self._faults, self._torch = device, faults, torch
        self._edge = CUDA_EDGE if device.is_cuda else CPU_EDGE
        shape = (self._edge, self._edge)
        self._whole = [integers(torch, shape, seed + index, 17) - 8 for index in (0, 1)]
        self._exact = [tensor.to(torch.float32).to(device.name) for tensor in self._whole]
        self._parts = [fractions(torch, shape, seed + index).to(device.name) for index in (2, 3)]
        self._half = [tensor.to(torch.bfloat16) for tensor in self._parts] if device.is_cuda else []
        device.turn_to(0)
        self._expected = [left @ right for left, right in self._pairs()]
        self._name = digest(torch, self._expected)
        self.last_digest = self._name
        self.rate = Rate(device.others())

    def _pairs(self) -> list[tuple[Any, Any]]:
        pairs = (self._exact, self._parts, self._half)
        return [(left, right) for left, right in (pair for pair in pairs if pair)]

    def check_sums(self) -> str:
        """Compare sums over the exact product with what they must be; return what is wrong."""
        left, right = self._whole
        product = self._expected[0].cpu().to(self._torch.int64)
        rows = product.sum(1) - left @ right.sum(1)
        columns = product.sum(0) - left.sum(0) @ right
        bad_rows, bad_columns = rows.nonzero().reshape(-1).tolist(), columns.nonzero().reshape(-1).tolist()
        if not bad_rows and not bad_columns:
            return ""
        return f"a product of integers is wrong: {len(bad_rows)} row sums (first {bad_rows[:1]}), {len(bad_columns)} column sums"

    def repeat(self) -> str:
        """Make all products again and compare each bit; return what differs."""
        torch, said = self._torch, ""
        self._device.sync()
        started_at_s = time.perf_counter()
        made = [left @ right for left, right in self._pairs()]
        self._device.sync()
        self.rate.add(2.0 * self._edge**3 * len(made), time.perf_counter() - started_at_s)
        self._faults.flip(made[1])
        self.last_digest = self._name
        for expected, got in zip(self._expected, made, strict=True):
            if not are_same_bits(torch, [expected], [got]):
                self.last_digest = digest(torch, made)
                said = said or _difference(torch, expected, got)
        return said


def check_memory(device: Device, size_bytes: int, faults: Faults) -> tuple[Rate, list[str]]:
    """Write patterns to memory, read them back; return the bytes of both together, over time, and what was wrong."""
    torch = device.torch
    block = torch.empty(max(size_bytes // 8, 1), dtype=torch.int64, device=device.name)
    rate, wrong = Rate(device.others()), list[str]()
    for pattern in PATTERNS:
        word = int.from_bytes(bytes([pattern]) * 8, "little", signed=True)
        device.sync()
        started_at_s = time.perf_counter()
        block.fill_(word)
        faults.flip(block)
        bad = int((block != word).sum().item())
        rate.add(2.0 * block.numel() * 8, time.perf_counter() - started_at_s)
        if bad:
            wrong.append(f"{bad} words of {block.numel()} of its memory did not keep the pattern 0x{pattern:02x}")
    return rate, wrong


def _default_bytes(device: Device) -> int:
    return min(device.free_bytes() // 4, 32 << 30) if device.is_cuda else min(device.free_bytes() // 16, 64 << 20)


def _difference(torch: Any, expected: Any, got: Any) -> str:
    places = (bits(torch, expected) != bits(torch, got)).nonzero()
    row, column = places[0].tolist()
    left, right = float(expected[row, column]), float(got[row, column])
    return f"a matrix product differs in {len(places)} elements, first [{row}, {column}]: {right!r} instead of {left!r}"


def _most_frequent(digests: dict[str, int], most: int = 16) -> dict[str, int]:
    return dict(sorted(digests.items(), key=lambda item: (-item[1], item[0]))[:most])


if __name__ == "__main__":
    main("compute", measure)
