"""Writes the flight recorder of torch to a file when a trigger file appears, as torch's own dump after a timeout would.

The dump of a gloo process group has no usable `pg_config`: it is put in from what torch knows in Python, or the tool that
reads the dumps (`torchfrtrace`) would end with a KeyError. Stacks are left out: it does not need them to find anything, and
turning addresses into lines takes more than a second, by which failing ranks would be late.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import suppress
from typing import Any

from plan import Plan

TRIGGER = "dump-now"
LOOK_EVERY_S = 0.05


def dump(plan: Plan, rank: int) -> None:
    """Write `rank_N` into the folder `dumps` of the notes."""
    import torch.distributed.distributed_c10d as c10d
    from torch._C import _distributed_c10d

    native: Any = _distributed_c10d
    trace: dict[str, Any] = pickle.loads(native._dump_fr_trace(True, False, False))
    world = c10d._world
    config: dict[str, dict[str, str]] = {}
    for group, ranks in list(world.pg_group_ranks.items()):
        if group not in world.pg_names:
            continue  # torch's mark of a group that this rank is not in
        name, desc = str(world.pg_names[group]), str(getattr(group, "group_desc", ""))
        config[name] = {"name": name, "desc": desc, "ranks": str(sorted(ranks))}
    trace["pg_config"] = config
    folder = os.path.join(plan.notes, "dumps")
    os.makedirs(folder, exist_ok=True)
    part = os.path.join(plan.notes, f"dump-part-{rank}")
    with open(part, "wb") as file:
        pickle.dump(trace, file)
    os.replace(part, os.path.join(folder, f"rank_{rank}"))


def dump_of_failure(plan: Plan, rank: int) -> None:
    """Write it while the program fails; a failure of the dump must not take the place of the first one."""
    with suppress(Exception):
        dump(plan, rank)


def _wait(plan: Plan, rank: int) -> None:
    trigger = os.path.join(plan.notes, TRIGGER)
    while not os.path.exists(trigger):
        time.sleep(LOOK_EVERY_S)
    dump(plan, rank)


def dump_when_asked(plan: Plan, rank: int) -> None:
    """Start the thread that waits for the trigger."""
    threading.Thread(target=_wait, args=(plan, rank), daemon=True, name="flight-recorder").start()
