"""Who has been named and is still apart: what lasts while the job makes steps is said once more, and may be acted on. Pure.

A node is named within seconds to minutes. Before anything is done about it, it has to stay apart for long, and only time counts

- in which the job makes steps: while one node evaluates or saves alone, others wait, and everything differs for good reason;
- in which the node itself is heard: one that is starved of CPU says nothing of how it is;
- in which few are apart: what many show at once is their switch's, their rack's, or a new phase of the program's.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from robust_run.health.outliers.types import OutlierVerdict

MOST_GAP_S = 5.0
"""Between two signs of life of a node no more than this counts, however long it really was."""
FRESH_S = 120.0
"""So long ago it must have been said that a node is apart: a comparing that began anew, or stands still, says nothing of it."""
FEW_SHARE = 0.05
"""Of the nodes may be apart at once; one always."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One node that was named."""

    verdict: OutlierVerdict
    heard_s: float
    confirmed_s: float
    """When it was said last."""
    stood_s: float = 0.0
    """For how long that counts."""
    said: bool = False
    """That it stays apart was said."""


Standings = Mapping[str, Standing]
"""By the name of the machine."""


def named(standings: Standings, verdict: OutlierVerdict, now_s: float) -> Standings:
    """Return them after a verdict: one that says that it is over ends it, one that says that it lasts has the newest readings."""
    others = {machine: each for machine, each in standings.items() if machine != verdict.machine}
    if verdict.state == "over":
        return others
    before = standings.get(verdict.machine)
    if verdict.state == "new":
        return {**others, verdict.machine: Standing(verdict=verdict, heard_s=now_s, confirmed_s=now_s)}
    if before is None:
        return others
    return {**others, verdict.machine: msgspec.structs.replace(before, verdict=verdict, confirmed_s=now_s)}


def heard(
    standings: Standings, machine: str, now_s: float, *, nodes: int, makes_steps: bool, stays_s: float
) -> tuple[Standings, OutlierVerdict | None]:
    """Return them after a sign of life of a machine, and its verdict where it has now stayed apart for `stays_s`: once."""
    standing = standings.get(machine)
    if standing is None or standing.said:
        return standings, None
    passed_s = min(now_s - standing.heard_s, MOST_GAP_S)
    is_fresh = now_s - standing.confirmed_s <= FRESH_S
    counts = makes_steps and is_fresh and len(standings) <= max(1, FEW_SHARE * nodes)
    stood_s = standing.stood_s + (passed_s if counts else 0.0)
    stays = stood_s >= stays_s
    new = msgspec.structs.replace(standing, heard_s=now_s, stood_s=stood_s, said=stays)
    return {**standings, machine: new}, standing.verdict if stays else None
