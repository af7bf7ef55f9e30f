"""Check between two neighbouring nodes: all-gather, with a check of the data (ByteRobust §4.2).

One bad pair accuses two nodes; a second round with pairs shifted by one tells which (`plan`, `groups`).
"""

from __future__ import annotations

from robust_run.health.checks.types import CheckProgramOrder, Result
from robust_run.health.diagnostics import meeting
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.meeting import Moved, Pass, Ranks
from robust_run.health.diagnostics.program import main


def measure(order: CheckProgramOrder, faults: Faults) -> Result:
    """Return the rate of all-gather, and whose data arrived wrong."""
    return meeting.measure(order, faults, _turn)


def _turn(ranks: Ranks, made: Pass) -> Moved:
    torch, share = ranks.torch, ranks.count // ranks.size
    sent = ranks.pattern(ranks.rank, made.number, share)
    made.corrupt(sent)
    got = [torch.empty_like(sent) for _ in range(ranks.size)]
    with made:
        ranks.dist.all_gather(got, sent)
    wrong = tuple(
        ranks.distrust(sender)
        for sender in range(ranks.size)
        if sender != ranks.rank and not torch.equal(got[sender], ranks.pattern(sender, made.number, share))
    )
    return Moved(bus_bytes=4.0 * share * (ranks.size - 1), wrong=wrong)


if __name__ == "__main__":
    main("neighbours", measure)
