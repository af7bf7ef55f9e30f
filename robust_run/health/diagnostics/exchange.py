"""Check inside a node: every device sends to every other (all-to-all), and the data is checked.

ByteRobust §4.2 and MegaScale §4 compare its rate with what the machine should do. One process for each device; on a node
without accelerators two processes, which tests little more than memory.
"""

from __future__ import annotations

from robust_run.health.checks.types import CheckProgramOrder, Result
from robust_run.health.diagnostics import meeting
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.meeting import Moved, Pass, Ranks
from robust_run.health.diagnostics.program import main


def measure(order: CheckProgramOrder, faults: Faults) -> Result:
    """Return the rate of all-to-all, and whose data arrived wrong."""
    return meeting.measure(order, faults, _turn)


def _turn(ranks: Ranks, made: Pass) -> Moved:
    torch, share = ranks.torch, ranks.count // ranks.size
    sent = ranks.pattern(ranks.rank, made.number, ranks.count)
    made.corrupt(sent)
    got = torch.empty_like(sent)
    with made:
        ranks.dist.all_to_all_single(got, sent)
    wrong: list[str] = []
    for sender in range(ranks.size):
        expected = ranks.pattern(sender, made.number, ranks.count)[ranks.rank * share : (ranks.rank + 1) * share]
        if not torch.equal(got[sender * share : (sender + 1) * share], expected):
            wrong.append(ranks.distrust(sender))
    return Moved(bus_bytes=4.0 * share * (ranks.size - 1), wrong=tuple(wrong))


if __name__ == "__main__":
    main("exchange", measure)
