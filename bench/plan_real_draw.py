"""Draws what is done to a short real job, with the fault process of plans."""

from __future__ import annotations

import random

from plan_real_words import DAY_S, HORIZON_S, LEAD_S, MIX, NODES, STANDBY, RealJob, Strike

from robust_run.planning.faults import Fault, faults_of
from robust_run.planning.words import Mix, Plan

EVERY = (20, 40, 80)


def drawn(seed: int, number: int, mix: Mix = MIX) -> RealJob:
    """Draw a job: from the seed and its number, nothing else.

    Left out is what plans do not simulate: the loss of the controller, which is on the first host; and what strikes before all
    hosts have come.
    """
    plan = Plan(nodes=NODES, gpus_per_node=1, standby=STANDBY, days=HORIZON_S / DAY_S, mix=mix)
    found = faults_of(plan, seed * 100_000 + number)
    return RealJob(
        number=number,
        every=random.Random(f"plan_real/{seed}/{number}").choice(EVERY),
        memory=number % 2 == 1,
        strikes=tuple(Strike(at_s=each.at_s, name=each.name, host=each.host) for each in found if is_struck(each)),
    )


def is_struck(fault: Fault) -> bool:
    """Whether a fault that was drawn is carried out."""
    return fault.at_s >= LEAD_S and not (fault.kind.shows == "lost" and fault.host == 0)


def as_faults(strikes: list[Strike], mix: Mix) -> list[Fault]:
    """Return a schedule as plans have it."""
    return [
        Fault(number=number, at_s=each.at_s, name=each.name, kind=mix.faults[each.name], host=each.host, stays=False)
        for number, each in enumerate(strikes)
    ]
