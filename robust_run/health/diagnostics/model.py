"""Check by one training step of a fixed model, whose results must be equal on all nodes, bit by bit, pass after pass.

echo '{"check": "model", "node": "here", "device": "cpu", "seconds": 2}' | python -m robust_run.health.diagnostics.model
"""

from __future__ import annotations

import time
from typing import Any

from robust_run.health.checks.types import CheckProgramOrder, Result
from robust_run.health.diagnostics.devices import open_device
from robust_run.health.diagnostics.digests import are_same_bits, digest
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.program import PassCounter, Rate, main
from robust_run.health.diagnostics.reference import Reference

#: Different outputs that are kept; a device that gives more of them is odd anyway.
MOST_DIGESTS = 16


def measure(order: CheckProgramOrder, faults: Faults) -> Result:
    """Return how often which output came out on this device. What it should be, only other nodes can tell."""
    device = open_device(order.device)
    reference = Reference(device.torch, order.device, order.seed, wide=device.is_cuda)
    pace, rate = PassCounter(order), Rate()
    first: dict[str, list[Any]] = {}
    digests: dict[str, int] = {}
    stages: dict[str, str] = {}
    while pace.more():
        device.turn_to(pace.made)
        device.sync()
        started_at_s = time.perf_counter()
        made = reference.step(faults.flip)
        device.sync()
        rate.add(1.0, time.perf_counter() - started_at_s)
        if first and all(are_same_bits(device.torch, first[name], made[name]) for name in first):
            name = "+".join(stages.values())
        else:  # the first pass, or one that differs from it
            names = {name: digest(device.torch, tensors) for name, tensors in made.items()}
            first, stages = first or made, stages or names
            name = "+".join(names.values())
        if name in digests or len(digests) < MOST_DIGESTS:
            digests[name] = digests.get(name, 0) + 1
    return Result(
        check=order.check,
        node=order.node,
        device=order.device,
        outcome="done",
        kind=device.kind,
        figures=rate.figures("passes_per_s"),
        passes=pace.made,
        digests=digests,
        stages=stages,
    )


if __name__ == "__main__":
    main("model", measure)
