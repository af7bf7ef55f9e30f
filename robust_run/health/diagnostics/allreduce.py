"""Check between several nodes: the bandwidth of all-reduce, to be compared with what this fleet did before (`history`).

The numbers are small integers in float32, so that every order of adding up gives the same sum, which is known.
"""

from __future__ import annotations

from robust_run.health.checks.types import CheckProgramOrder, Result
from robust_run.health.diagnostics import meeting
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.meeting import Moved, Pass, Ranks
from robust_run.health.diagnostics.program import main

#: Ranks beyond so many repeat the numbers of the first: sums of 65,536 ranks stay below 2**24, which float32 holds exactly.
WEIGHTS, STEPS = 16, 7


def measure(order: CheckProgramOrder, faults: Faults) -> Result:
    """Return the rate of all-reduce, and whether the sums are right."""
    return meeting.measure(order, faults, _turn)


def _turn(ranks: Ranks, made: Pass) -> Moved:
    torch = ranks.torch
    steps = (torch.arange(ranks.count, dtype=torch.int32, device=ranks.device.name) + made.number) % STEPS + 1
    data = (steps * (ranks.rank % WEIGHTS + 1)).to(torch.float32)
    made.corrupt(data)
    with made:
        ranks.dist.all_reduce(data)
    total = sum(rank % WEIGHTS + 1 for rank in range(ranks.size))
    is_right = torch.equal(data, (steps * total).to(torch.float32))
    moved = 2.0 * 4 * ranks.count * (ranks.size - 1) / ranks.size
    return Moved(bus_bytes=moved, wrong=() if is_right else ("the sums are wrong",))


if __name__ == "__main__":
    main("allreduce", measure)
