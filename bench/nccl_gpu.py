"""What the plugin for NCCL costs where it works: step time of a small DistributedDataParallel training, and bytes it writes.

Part of `bench/nccl_plugin.py`, for machines with a GPU. Two ranks share it and talk over sockets (see tests/gpu/ground.py), so
steps are slow and every byte goes through the proxy thread that the plugin watches: more of it than in a real job. Each round
runs all sides straight after one another, the order changing; of a side's steps the median counts, of its rounds too.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from datetime import date
from pathlib import Path

import msgspec

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]

from gpu import machine  # noqa: E402
from gpu.ground import Ranks, TooLongError  # noqa: E402

from robust_run.tracer.plugin import layout  # noqa: E402

OFF, ON, KERNELS = "no plugin", "traced", "traced, kernels too"
SIDES = (OFF, ON, KERNELS)
#: Steps that are not counted: CUDA starts, communicators are made.
WARM_UP = 10
AIM_SHARE, AIM_BYTES = 0.003, 50_000


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one side."""

    step_s: float
    """Median of rank 0."""
    operations: float = 0.0
    """Of a rank in a step."""
    bytes: float = 0.0
    """Of the trace that a rank writes in a step, at the most: a row of each operation, and each row of a flow."""


def measure_side(folder: Path, side: str, plugin: str, steps: int, backend: str = "nccl") -> Measured:
    """Run a training of so many steps. Raises TooLongError where it does not end."""
    environment = {layout.KERNELS_VARIABLE: "1"} if side == KERNELS else {}
    with Ranks(
        folder, backend, steps=WARM_UP + steps, plugin="" if side == OFF else plugin, environment=environment
    ) as ranks:
        ranks.until_done(600.0)
        ranks.until_steps(WARM_UP + steps, 1.0)
        times = ranks.step_times(0)[WARM_UP:]
        trace = None if side == OFF else ranks.trace(0)
    operations = 0.0 if trace is None else trace.glance.ops / (WARM_UP + steps)
    flows = 0 if trace is None else len(trace.flows)
    return Measured(
        step_s=statistics.median(times),
        operations=operations,
        bytes=operations * layout.OP_BYTES + flows * layout.FLOW_BYTES,
    )


def measure(plugin: str, rounds: int, steps: int) -> dict[str, list[Measured]]:
    """Return what each side took in each round."""
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for place in range(len(SIDES)):
                side = SIDES[(place + number) % len(SIDES)]
                found[side].append(measure_side(Path(folder) / f"{number}-{place}", side, plugin, steps))
    return found


def rows(found: dict[str, list[Measured]]) -> list[list[str]]:
    """Return a table of what was measured: side, step, against no plugin, operations, bytes."""
    table = []
    for side, runs in found.items():
        ratios = [run.step_s / off.step_s for run, off in zip(runs, found[OFF], strict=True)]
        table.append(
            [
                side,
                f"{statistics.median(run.step_s for run in runs) * 1e3:.3f} ms",
                "" if side == OFF else f"{statistics.median(ratios) - 1:+.2%}",
                "" if side == OFF else f"{statistics.median(run.operations for run in runs):.1f}",
                "" if side == OFF else f"{statistics.median(run.bytes for run in runs):,.0f}",
            ]
        )
    return table


HEAD = ["", "step", "against no plugin", "operations of a rank in a step", "bytes of a rank in a step, at the most"]


def document(found: dict[str, list[Measured]], rounds: int, steps: int) -> str:
    """Return what was measured as a page of docs/."""
    table = [HEAD, ["---"] * len(HEAD), *rows(found)]
    lines = [
        "# NCCL tracing, measured on a GPU",
        "",
        f"Written by `bench/nccl_plugin.py` on {date.today().isoformat()}: "
        + ", ".join(f"{name} {version}" for name, version in machine.versions().items())
        + f". Two ranks on one GPU over sockets, {rounds} rounds of {steps} steps; medians.",
        "",
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        f"Aims: at most {AIM_SHARE:.1%} of the step, at most {AIM_BYTES:,} bytes.",
        "",
    ]
    return "\n".join(lines)


def gpu_part(plugin: str, rounds: int, steps: int, write: str) -> dict[str, object]:
    """Measure, print and (`write`: a path) keep what the plugin costs on a GPU; say why not where that cannot be."""
    reason = machine.why_not()
    if not reason and rounds < 1:
        reason = "--gpu-rounds 0"
    found: dict[str, list[Measured]] = {}
    if not reason:
        try:
            found = measure(plugin, rounds, steps)
        except TooLongError as error:
            reason = f"two ranks do not train on one GPU here: {error}"
    if reason:
        print(f"\n  step time with NCCL: skipped, {reason}", flush=True)
        return {"skipped": reason}
    print("\n  step time with NCCL, two ranks on one GPU over sockets")
    for row in rows(found):
        print(f"    {row[0]:<22}" + "".join(f"{cell:>14}" for cell in row[1:]))
    if write:
        Path(write).write_text(document(found, rounds, steps))
        print(f"  written to {write}")
    return {"versions": machine.versions(), "rounds": msgspec.to_builtins(found)}
