"""What tracing costs: step time of examples/train_gpt.py with tracing and with ROBUST_TRACE=0, and the cost of one traced call.

    python bench/tracing_overhead.py --pairs 12 --steps 60
    python bench/tracing_overhead.py --pairs 0 --call-rounds 8      one call only: recorded in C, in Python, not at all

A pair is a run of each side, straight after one another, the order changing from pair to pair. A run's figure is the median time
of a step of rank 0 after the first ten; the ratio is the median of the pairs' ratios. As a shared machine differs by more
from run to run than tracing costs, the second figure is computed: what one call costs more (one rank alone, an all_reduce of
four bytes, call and wait, the best of many rounds; the sides take turns), times the calls of a step, as a part of a step. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any

from sidebyside import add_launcher_options, end_job, print_result, spread, start_job, unwind_on_sigterm

from robust_run.tracer.native import build

TRACED, IN_PYTHON, UNTRACED = "traced", "traced_in_python", "untraced"
SIDES = {TRACED: {}, UNTRACED: {"ROBUST_TRACE": "0"}}
CALL_SIDES = {**SIDES, IN_PYTHON: {"ROBUST_TRACE_NATIVE": "0"}}
"""The recorder in C is for traced runs; what records in Python where it cannot be built is measured beside it."""
KINDS = {TRACED: "method", IN_PYTHON: "function", UNTRACED: ""}
"""Type of a method of ProcessGroup on each side: a run that is not what it should be ends."""
EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")
WARM_UP_STEPS = 10
RUN_LIMIT_S = 240.0

TRAIN = """
import os, sys, time
sys.path.insert(0, {examples!r})
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
import torch.distributed as dist
import train_gpt
times = []
register_optimizer_step_post_hook(lambda *_: times.append(time.perf_counter()))
train_gpt.main()
if os.environ["RANK"] == "0":
    with open("times.part", "w") as file:
        file.write(" ".join("%.7f" % (b - a) for a, b in zip(times, times[1:])))
    os.rename("times.part", "times")
"""
"""The example, and how long each of its steps took."""

CALLS = """
import os, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
kind = type(dist.ProcessGroup.allreduce).__name__
assert (kind if kind in ("method", "function") else "") == os.environ["BENCH_KIND"], f"recorded by a {kind}"
x = torch.ones(1)
best = []
for _ in range(40):
    began = time.perf_counter()
    for _ in range(2000):
        dist.all_reduce(x)
    best.append((time.perf_counter() - began) / 2000)
with open("times.part", "w") as file:
    file.write(" ".join("%.9f" % value for value in best))
os.rename("times.part", "times")
dist.destroy_process_group()
"""
"""The cheapest call there is: a world of one rank."""


def run(args: argparse.Namespace, side: str, script: str, nproc: int, *more: str) -> list[float]:
    """Run a script under robust-run; return the durations that it left, in seconds."""
    with tempfile.TemporaryDirectory(prefix="robust-overhead-") as folder:
        path = os.path.join(folder, "worker.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script.format(examples=EXAMPLES) if "{examples" in script else script)
        launcher = [os.path.abspath(args.robust_run), "--nproc-per-node", str(nproc), "--max-restarts", "0"]
        job = start_job(
            [*launcher, path, *more], folder, {**CALL_SIDES[side], "OMP_NUM_THREADS": "1", "BENCH_KIND": KINDS[side]}
        )
        try:
            code = job.launcher.wait(RUN_LIMIT_S)
            if code:
                raise SystemExit(f"a {side} run ended with {code}:\n{job.output()}")
            with open(os.path.join(folder, "times"), encoding="ascii") as file:
                return [float(word) for word in file.read().split()]
        finally:
            end_job(job)


def step_pairs(args: argparse.Namespace, end_at_s: float) -> dict[str, list[float]]:
    """Return the figures of both sides, pair by pair."""
    figures: dict[str, list[float]] = {side: [] for side in SIDES}
    options = ["--steps", str(args.steps), "--checkpoint-every", "1000000", "--log-every", "1000000"]
    for pair in range(args.pairs):
        if time.monotonic() > end_at_s:
            print(f"--limit-s {args.limit_s:g} is over after {pair} pairs", flush=True)
            break
        order = list(SIDES) if pair % 2 == 0 else list(SIDES)[::-1]
        for side in order:
            steps = run(args, side, TRAIN, args.nproc, *options)[WARM_UP_STEPS:]
            figures[side].append(statistics.median(steps))
        traced, untraced = figures[TRACED][-1], figures[UNTRACED][-1]
        print(
            f"  pair {pair + 1}: {traced * 1e3:.2f} ms traced, {untraced * 1e3:.2f} ms without,"
            f" {traced / untraced:.4f}", flush=True,
        )  # fmt: skip
    return figures


def calls(args: argparse.Namespace) -> dict[str, list[float]]:
    """Return what one call takes on each side, in seconds: the best round of each of several runs, in turns."""
    ready = build.ensure()
    if ready.reason:
        raise SystemExit(f"nothing to compare with: {ready.reason}")
    found: dict[str, list[float]] = {side: [] for side in CALL_SIDES}
    for number in range(args.call_rounds):
        order = list(CALL_SIDES)
        for side in order[number % 3 :] + order[: number % 3]:
            found[side].append(min(run(args, side, CALLS, 1)))
            print(f"  call {number + 1}: {found[side][-1] * 1e6:.2f} us {side}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_launcher_options(parser, 1800)
    parser.add_argument("--pairs", type=int, default=12, help="default 12")
    parser.add_argument("--steps", type=int, default=60, help="of a run (default 60)")
    parser.add_argument("--nproc", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--call-rounds", type=int, default=3, help="runs a side for the cost of one call (default 3)")
    parser.add_argument("--calls-per-step", type=float, default=2.0, help="recorded a step by the example (default 2)")
    args = parser.parse_args()
    if args.steps <= WARM_UP_STEPS + 1 or args.pairs < 0 or args.call_rounds < 1:
        parser.error(
            f"--steps {args.steps}: must be more than {WARM_UP_STEPS + 1}; --pairs: at least 0; --call-rounds: 1"
        )
    unwind_on_sigterm()
    end_at_s = time.monotonic() + args.limit_s
    one_call = calls(args)
    figures = step_pairs(args, end_at_s)
    report(args, one_call, figures)


def report(args: argparse.Namespace, by_call: dict[str, list[float]], figures: dict[str, list[float]]) -> None:
    """Print the figures with all of their sides, and the line of JSON."""
    best = {side: min(values) for side, values in by_call.items()}
    more = {side: best[side] - best[UNTRACED] for side in (TRACED, IN_PYTHON)}
    print("\n  one all_reduce of a single rank, best and median of the runs' best, and what is more than untraced")
    for side, values in by_call.items():
        beyond = f"{more[side] * 1e6:8.2f} us" if side in more else ""
        print(f"    {side:<18}{best[side] * 1e6:8.2f}{statistics.median(values) * 1e6:8.2f} us{beyond}")
    case: dict[str, Any] = {
        "call_us": {side: spread([round(value * 1e6, 3) for value in values]) for side, values in by_call.items()},
        "call_best_s": {side: round(value, 9) for side, value in best.items()},
        "call_more_s": {side: round(value, 9) for side, value in more.items()},
    }
    if args.pairs:
        case.update(report_steps(args, more[TRACED], figures))
    print_result("tracing_overhead", [case])


def report_steps(args: argparse.Namespace, more_s: float, figures: dict[str, list[float]]) -> dict[str, Any]:
    """Print what steps took, and what the cost of one call comes to; return it for the line of JSON."""
    if not figures[UNTRACED]:
        sys.exit("no pair was finished: give a larger --limit-s")
    ratios = [traced / untraced for traced, untraced in zip(figures[TRACED], figures[UNTRACED], strict=True)]
    step_s = statistics.median(figures[UNTRACED])
    computed = more_s * args.calls_per_step / step_s
    print(f"  step of train_gpt.py, {args.nproc} ranks, median of {len(ratios)} pairs")
    for side in SIDES:
        print(f"    {side:<10}{statistics.median(figures[side]) * 1e3:10.3f} ms")
    print(f"    ratio     {statistics.median(ratios):10.4f} ({min(ratios):.4f}-{max(ratios):.4f})")
    print(f"  {args.calls_per_step:g} calls a step: {computed:.4%} of it", flush=True)
    return {
        "nproc": args.nproc,
        "steps": args.steps,
        "step_s": {side: spread(figures[side]) for side in SIDES},
        "step_ratio": spread(ratios),
        "computed_overhead": round(computed, 7),
    }


if __name__ == "__main__":
    main()
