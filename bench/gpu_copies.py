"""Copies of a state from a GPU into memory: `checkpoint.save`'s page-locked buffers against pageable ones, and a bare copy.

    python bench/gpu_copies.py --gigabytes 4 --rounds 5

Ways, in turns, each over the same tensors on one GPU: `pinned` is what robust-run does (page-locked once, then reused),
`pageable` the same buffers as they are, `bare` one copy of as many bytes by CUDA into page-locked memory that torch made: what
the bus gives. The last line of standard output is one JSON object. Where there is no GPU it says so and ends with 1.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]

from gpu import machine  # noqa: E402
from sidebyside import print_result, spread  # noqa: E402

PINNED, PAGEABLE, BARE = WAYS = ("pinned", "pageable", "bare")
TENSORS = 16
AIM = 0.9
"""Of the bare copy's rate."""


def seconds_of(copy: Callable[[], None]) -> float:
    """Return how long a copy takes until the GPU is done with it."""
    import torch

    torch.cuda.synchronize()
    began_s = time.monotonic()
    copy()
    torch.cuda.synchronize()
    return time.monotonic() - began_s


def ways_of(gigabytes: float) -> dict[str, Callable[[], None]]:
    """Return what copies all tensors, by way."""
    import torch

    from robust_run.checkpoint.places import Part, Places
    from robust_run.checkpoint.types import SavedTensor
    from robust_run.ckpt_io.dcp.to_host import copy_to_host
    from robust_run.ckpt_io.memory.client import Buffer
    from robust_run.ckpt_io.memory.types import TensorEntry

    count = int(gigabytes * 1e9 / 4 / TENSORS) // 1024 * 1024
    sources = [torch.randn(count, device="cuda") for _ in range(TENSORS)]
    size_bytes = 4 * count
    part = Part(
        tuple(SavedTensor(str(index), "float32", (count,)) for index in range(TENSORS)),
        tuple(TensorEntry(str(index), "float32", (count,), index * size_bytes, size_bytes) for index in range(TENSORS)),
        0,
    )

    def over(*, pin: bool) -> list[torch.Tensor]:
        descriptor = os.memfd_create("part")
        os.truncate(descriptor, TENSORS * size_bytes)
        buffer = Buffer(view=memoryview(mmap.mmap(descriptor, TENSORS * size_bytes)), id=int(pin), step=1)
        os.close(descriptor)
        places = Places(print)
        kept.append(places)
        return list(places.over(buffer, part, pin=pin))

    kept: list[Places] = []
    pinned, pageable = over(pin=True), over(pin=False)
    bare = [torch.empty(count, pin_memory=True) for _ in range(TENSORS)]

    def copy_bare() -> None:
        for into, source in zip(bare, sources, strict=True):
            into.copy_(source, non_blocking=True)

    return {
        PINNED: lambda: copy_to_host(pinned, sources),
        PAGEABLE: lambda: copy_to_host(pageable, sources),
        BARE: copy_bare,
    }


def main() -> int:
    """Run the bench. Returns 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description="Copies of a state from a GPU into page-locked and pageable memory.")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if reason := machine.why_not():
        print(f"gpu_copies: not measured: {reason}")
        return 1
    ways = ways_of(args.gigabytes)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(args.rounds + 1):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            took_s = seconds_of(ways[way])
            if number:  # the first touches every page
                found[way].append(args.gigabytes / took_s)
    case: dict[str, Any] = {way: spread(values) for way, values in found.items()}
    ratio = case[PINNED]["median"] / case[BARE]["median"]
    for way in WAYS:
        print(f"{way:<9} {case[way]['median']:7.2f} GB/s ({case[way]['min']:.2f}-{case[way]['max']:.2f})")
    print(f"pinned / bare: {ratio:.2f} (aim {AIM})")
    print(f"pinned / pageable: {case[PINNED]['median'] / case[PAGEABLE]['median']:.2f}")
    print_result("gpu_copies", [{"gigabytes_per_s": case, "ratio": round(ratio, 3), "aim": AIM}])
    return 0


if __name__ == "__main__":
    sys.exit(main())
