"""Check of the host's memory: how fast it is copied by all cores, and whether what was copied is the same.

echo '{"check": "memory", "node": "here", "seconds": 2}' | python -m robust_run.health.diagnostics.memory
"""

from __future__ import annotations

import time

from robust_run.health.checks.types import CheckProgramOrder, Result
from robust_run.health.diagnostics.devices import available_memory_bytes, open_device
from robust_run.health.diagnostics.digests import integers
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.program import PassCounter, Rate, RefusedError, main

#: Copied at a time: more than caches hold, where there is memory for it.
USUAL_BYTES, LEAST_BYTES = 256 << 20, 1 << 20


def measure(order: CheckProgramOrder, faults: Faults) -> Result:
    """Return the rate of copying (bytes read and written) on this node."""
    size_bytes = min(order.size_bytes or USUAL_BYTES, available_memory_bytes() // 8)
    if size_bytes < LEAST_BYTES:
        raise RefusedError(f"only {available_memory_bytes() >> 20} MiB of memory are available; this check needs 8 MiB")
    device = open_device("cpu", threads=None)
    torch = device.torch
    unit = integers(torch, (1 << 17,), order.seed, 1 << 30)
    source = unit.repeat(max(size_bytes // (unit.numel() * 8), 1))
    target = torch.zeros_like(source)
    pace, rate = PassCounter(order), Rate(device.others())
    wrong: list[str] = []
    while pace.more():
        started_at_s = time.perf_counter()
        target.copy_(source)
        faults.slow_down()
        rate.add(2.0 * source.numel() * 8, time.perf_counter() - started_at_s)
        faults.flip(target)
        if not torch.equal(source, target) and len(wrong) < 4:
            bad = int((source != target).sum().item())
            wrong.append(f"pass {pace.made}: {bad} of {source.numel()} words were not copied as they are")
    figures = rate.figures("bytes_per_s")
    return Result(
        check=order.check,
        node=order.node,
        device=order.device,
        outcome="done",
        kind=device.kind,
        figures=figures,
        others_by_figure=rate.others_cpus,
        passes=pace.made,
        wrong=tuple(wrong),
    )


if __name__ == "__main__":
    main("memory", measure)
