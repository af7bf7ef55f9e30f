"""What one run of the training program shall do and what shall go wrong in it: a `Plan`, handed over as JSON.

It is read by the program in the workers, so it imports nothing but Python. Notes are files in a folder that all ranks share:
when the fault fired, how far each rank is, what it answered when its flight recorder was asked for.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VARIABLE = "FAULT_PLAN"
"""In the environment of the job: the plan as JSON."""
BEAT = struct.Struct("<Qd")
"""Steps made, and when the last one ended."""
FOR_EVER_S = 100_000.0
"""Longer than anybody waits."""


@dataclass(frozen=True)
class Plan:
    """One run. `fault` is a name in `acts.ACTS` or `acts.TAMPERINGS`, or of a habit that is no fault."""

    notes: str
    """Folder of the notes."""
    layout: str = "dp"
    fault: str = ""
    ranks: tuple[int, ...] = ()
    """Where it strikes."""
    step: int = 40
    """When it strikes, counted from 0; slowness goes on from there."""
    steps: int = 1_000_000
    """The program ends after so many."""
    step_s: float = 0.03
    """For how long a step computes, about."""
    seed: int = 0
    dumps: bool = False
    """A thread of the program waits to be asked for its flight recorder's dump. For all that is known it might break a circle of
    waits, so circles are not acted on at once."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """How long, how often: what the fault or habit wants to know."""

    def to_json(self) -> str:
        """For the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Plan:
        """Read it back. Raises KeyError without one."""
        values: dict[str, Any] = json.loads(environment[VARIABLE])
        return cls(**{**values, "ranks": tuple(values["ranks"])})


def note(plan: Plan, name: str, value: object = "") -> None:
    """Write a note as a whole: whoever sees the file sees all of it."""
    path = os.path.join(plan.notes, name)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(f"{value}")
    os.replace(f"{path}.part", path)


def note_fired(plan: Plan, rank: int) -> None:
    """Say when the fault struck, just before it does; the first time only, where it goes on."""
    name = f"fired-{plan.fault}-{rank}"
    if not os.path.exists(os.path.join(plan.notes, name)):
        note(plan, name, repr(time.monotonic()))


class Heart:
    """The steps a rank has made and when it made the last one, in a file that outlives it."""

    def __init__(self, plan: Plan, rank: int) -> None:
        path = os.path.join(plan.notes, f"beat-{rank}")
        with open(path, "w+b") as file:
            file.truncate(BEAT.size)
            self._map = mmap.mmap(file.fileno(), BEAT.size)

    def beat(self, steps: int) -> None:
        """A step has ended."""
        BEAT.pack_into(self._map, 0, steps, time.monotonic())


def read_beat(notes: str, rank: int) -> tuple[int, float]:
    """Return steps and the time of the last one (monotonic seconds); (0, 0.0) before the first."""
    try:
        with open(os.path.join(notes, f"beat-{rank}"), "rb") as file:
            content = file.read(BEAT.size)
    except OSError:
        return 0, 0.0
    if len(content) < BEAT.size:
        return 0, 0.0
    steps, at_s = BEAT.unpack(content)
    return int(steps), float(at_s)
