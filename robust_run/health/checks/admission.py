"""Whether a node may join a job, by what it does alone. Pure.

For standbys before they are counted on: what needs other nodes is left out, and the rest is brief. The fleet's history is the
second opinion: what others of its kind gave bit by bit, and how fast they were.
"""

from __future__ import annotations

import msgspec

from robust_run.health.checks.plan import Wish
from robust_run.health.checks.types import CheckJudgement

#: What a standby is asked for.
ADMISSION = Wish(only=("compute", "model", "memory", "disk", "exchange"), seconds=1.0)


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    admitted: bool
    rule: str
    """Of the suspicion that decided; `passed`, `unchecked` or `weak_suspicion` where it is admitted."""
    sentence: str


def admit(judgement: CheckJudgement, node: str) -> Admission:
    """Return whether a node that was checked alone may join.

    It is refused for what is wrong or strange beyond noise. What could not be checked, or is only weakly suspect, is said and
    admitted: a job that waits for a node has nothing of a strict door.
    """
    own = [each for each in judgement.suspects if each.node == node]
    strong = [each for each in own if each.confidence != "low"]
    if strong:
        return Admission(admitted=False, rule=strong[0].rule, sentence=strong[0].sentence)
    if own:
        return Admission(admitted=True, rule="weak_suspicion", sentence=own[0].sentence)
    if judgement.unchecked:
        return Admission(admitted=True, rule="unchecked", sentence=judgement.unchecked[0])
    return Admission(admitted=True, rule="passed", sentence=f"nothing was found on {node}")
