"""What to improve first: what each thing would give back if it took half as long, or came half as often. Pure.

Reckoned from what was simulated, not simulated again: half the time of a phase gives back half of what is lost in it. That is
right as long as it is short against the time between failures; each is meant by itself, and two may share what they give.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from robust_run.planning.words import Plan, Spread

#: What gives back less than this share of the time is not worth a line.
LEAST_GAIN = 0.0002
MOST = 8


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """Something that takes time."""

    what: str
    """If it is halved."""
    phases: tuple[str, ...]
    causes: tuple[str, ...] = ()
    """Empty: of all."""
    but: tuple[str, ...] = ()
    """Not of these."""
    times: tuple[str, ...] = ()
    """Names in `[times]` that it rests on."""
    how: str
    """What changes it."""


class Improvement(msgspec.Struct, frozen=True, kw_only=True):
    """What one change would bring."""

    what: str
    share: float
    """Of the job's time, that would be trained in besides."""
    gpu_hours: float
    rests_on: str
    """Which times of the plan it follows from; empty: of rules and faults alone."""
    how: str
    money: float | None = None


#: Times that nobody has measured for this project: a plan is as good as what is put in their place.
GUESSED = frozenset(
    ("connect", "load_memory", "load_storage", "checks", "person", "repair", "requeue", "drain", "reboot")
)

LEVERS = (
    Lever(
        what="process groups and loading take half as long",
        phases=("load",),
        times=("connect", "load_memory", "load_storage"),
        how="fewer or lazily made groups; measure both on your cluster",
    ),
    Lever(
        what="ends of the job, with people and the queue, come half as often",
        phases=("queue",),
        times=("person", "requeue"),
        how="why it ended is listed above; more standbys and --max-restarts",
    ),
    Lever(
        what="hangs are known in half the time",
        phases=("detect",),
        causes=("hang",),
        how="a shorter timeout of process groups (--torch-timeout); programs that can be traced (docs/hangs.md)",
    ),
    Lever(
        what="wrong numbers are noticed in half the time",
        phases=("redo",),
        causes=("nan",),
        how="checks of loss and gradients (--metrics-from), bit-wise checks of nodes now and then",
    ),
    Lever(
        what="other faults are known in half the time",
        phases=("detect",),
        but=("hang",),
        how="sensors for what has none; shorter patience of storage clients and connections",
    ),
    Lever(
        what="half as much is trained again",
        phases=("redo",),
        but=("nan",),
        how="save to memory each step; copies on nodes that share no switch",
    ),
    Lever(what="checks of all nodes take half as long", phases=("check",), times=("checks",), how="--diagnose-checks"),
    Lever(
        what="workers start in half the time",
        phases=("launch",),
        times=("launch", "cold_launch"),
        how="docs/startup.md",
    ),
    Lever(what="attempts end in half the time", phases=("end",), times=("end",), how="--restart-grace"),
    Lever(
        what="nodes are waited for half as long",
        phases=("wait",),
        times=("repair", "reboot", "drain"),
        how="more standbys; faster repair",
    ),
    Lever(
        what="saves to storage stand still half as long",
        phases=("save",),
        causes=("saving",),
        how="saves that go on in the background (--ckpt-blocks); less often: see the intervals (--ckpt-every)",
    ),
    Lever(
        what="steps kept in memory stand still half as long",
        phases=("save",),
        causes=("saving_memory",),
        how="not each step: memory_steps; measure memory_blocks_s (0.05 s is a guess), both of [saving] in the mix",
    ),
    Lever(what="slow nodes slow half as long", phases=("slow",), times=("person",), how="--on-slow evict"),
)


def improvements(plan: Plan, by_phase_and_cause: Mapping[str, Mapping[str, float]]) -> tuple[Improvement, ...]:
    """Return what would bring most, the best first. `by_phase_and_cause`: shares of the time that were lost."""
    found = [_of(plan, lever, by_phase_and_cause) for lever in LEVERS]
    causes: dict[str, float] = {}
    for parts in by_phase_and_cause.values():
        for cause, share in parts.items():
            causes[cause] = causes.get(cause, 0.0) + share
    for name, kind in plan.mix.faults.items():
        if causes.get(name) and kind.per_1000_node_days:
            how = "better parts, burn-in and repair: see lemons and misrepaired in the mix"
            found.append(_improvement(plan, f"half as many faults of the kind {name}", causes[name] / 2, "", how))
    ordered = sorted(found, key=lambda each: (-each.share, each.what))
    return tuple(each for each in ordered[:MOST] if each.share >= LEAST_GAIN)


def _of(plan: Plan, lever: Lever, lost: Mapping[str, Mapping[str, float]]) -> Improvement:
    share = sum(
        value
        for phase in lever.phases
        for cause, value in lost.get(phase, {}).items()
        if (not lever.causes or cause in lever.causes) and cause not in lever.but
    )
    return _improvement(plan, lever.what, share / 2, ", ".join(_time(plan, name) for name in lever.times), lever.how)


def _improvement(plan: Plan, what: str, share: float, rests_on: str, how: str) -> Improvement:
    gpu_hours = share * plan.nodes * plan.gpus_per_node * plan.days * 24.0
    money = gpu_hours * plan.price if plan.price else None
    return Improvement(what=what, share=share, gpu_hours=gpu_hours, rests_on=rests_on, how=how, money=money)


def _time(plan: Plan, name: str) -> str:
    value: Spread = getattr(plan.times, name)
    is_default = value == getattr(type(plan.times)(), name)
    return f"{name} {value.median:g} s" + (" (a guess)" if is_default and name in GUESSED else "")
