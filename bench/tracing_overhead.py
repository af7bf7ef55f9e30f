"""What tracing costs: step time of examples/train_gpt.py with tracing and with ROBUST_TRACE=0, and the cost of one traced call.

    python bench/tracing_overhead.py --pairs 12 --steps 60
    python bench/tracing_overhead.py --pairs 0      one call only: recorded in C, in Python, not at all
    python bench/tracing_overhead.py --pairs 0 --backend fake      the same of a group that is done at once: no thread wakes up

A pair is a run of each side, straight after one another, the order changing from pair to pair. A run's figure is the median time
of a step of rank 0 after the first ten; the ratio is the median of the pairs' ratios. As a shared machine differs by more
from run to run than tracing costs, the second figure is computed: what one call costs more (one rank alone, an all_reduce of
four bytes, call and wait, the best of many rounds; the sides take turns), times the calls of a step, as a part of a step. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from sidebyside import add_launcher_options, end_job, print_result, spread, start_job, unwind_on_sigterm

from robust_run.tracer.files import arming, ring_format
from robust_run.tracer.native import build

TRACED, IN_PYTHON, UNTRACED = "traced", "traced_in_python", "untraced"
SIDES = {TRACED: {}, UNTRACED: {"ROBUST_TRACE": "0"}}
CALL_SIDES = (TRACED, IN_PYTHON, UNTRACED)
"""The recorder in C is for traced runs; what records in Python where it cannot be built is measured beside it."""
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
import importlib.util, json, os, sys, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as library, torch.distributed.distributed_c10d as distributed
sides, arm, native_path, rounds, backend = sys.argv[1].split(), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
dist.init_process_group(backend, init_method="file://" + os.path.abspath("meeting"), rank=0, world_size=1)
spec = importlib.util.spec_from_file_location("worker_side", arm)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

def fail(error):
    raise error

works = type(dist.all_reduce(torch.ones(1), async_op=True)) if backend == "fake" else library.Work  # that one's own wait

def methods():
    return library.ProcessGroup.__dict__["allreduce"], works.__dict__["wait"]

def put(allreduce, wait):
    library.ProcessGroup.allreduce, works.wait = allreduce, wait

native = worker.load("native")
rings = {
    sides[0]: (native.NativeRing("in_c", fail, native.extension(native_path)), native.NativeHooks),
    sides[1]: (worker.load("recorder").Ring("in_python", fail), worker.load("hooks").Hooks),
}
original, ways = methods(), {}
for side, (ring, hooks_class) in rings.items():
    put(*original)
    hooks = hooks_class(ring, distributed, library, lambda: None)
    hooks.late_done = True
    hooks.install()
    ways[side] = methods()[0], hooks.wait(original[1])
ways[sides[2]] = original
x = torch.ones(1)
found = {side: [] for side in sides}
cpu = {side: [] for side in sides}
for number in range(rounds):
    for side in sides[number % 3:] + sides[:number % 3]:
        put(*ways[side])
        for _ in range(50):
            dist.all_reduce(x)
        began, used = time.perf_counter(), time.thread_time()
        for _ in range(200):
            dist.all_reduce(x)
        cpu[side].append((time.thread_time() - used) / 200)
        found[side].append((time.perf_counter() - began) / 200)
for ring, _ in rings.values():
    assert ring.cells[5] == 250 * rounds, "it did not record"
with open("found", "w") as file:
    json.dump([found, cpu], file)
os._exit(0)
"""
"""The cheapest call there is, in a world of one rank. The sides take turns in one process, a few milliseconds each: from one
process to the next such a call differs by more than recording costs."""


def run(args: argparse.Namespace, side: str, script: str, nproc: int, *more: str) -> list[float]:
    """Run a script under robust-run; return the durations that it left, in seconds."""
    with tempfile.TemporaryDirectory(prefix="robust-overhead-") as folder:
        path = os.path.join(folder, "worker.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script.format(examples=EXAMPLES) if "{examples" in script else script)
        launcher = [os.path.abspath(args.robust_run), "--nproc-per-node", str(nproc), "--max-restarts", "0"]
        job = start_job([*launcher, path, *more], folder, {**SIDES[side], "OMP_NUM_THREADS": "1"})
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


def calls(args: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return what one call takes on each side, in seconds, round by round, of several processes."""
    ready = build.ensure()
    if ready.reason:
        raise SystemExit(f"nothing to compare with: {ready.reason}")
    found: dict[str, list[float]] = {side: [] for side in CALL_SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in CALL_SIDES}
    for _ in range(args.call_runs):
        with tempfile.TemporaryDirectory(prefix="robust-overhead-") as folder:
            for name in ("in_c", "in_python"):
                ring_format.create(os.path.join(folder, name), 0, 1)
            arm = os.path.join(arming.ARM_FOLDER, "sitecustomize.py")
            argv = [
                sys.executable,
                "-c",
                CALLS,
                " ".join(CALL_SIDES),
                arm,
                ready.path,
                str(args.call_rounds),
                args.backend,
            ]
            subprocess.run(
                argv, cwd=folder, check=True, timeout=RUN_LIMIT_S, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            with open(os.path.join(folder, "found"), encoding="ascii") as file:
                for into, came in zip((found, cpu), json.load(file), strict=True):
                    for side, values in came.items():
                        into[side] += values
    return found, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_launcher_options(parser, 1800)
    parser.add_argument("--pairs", type=int, default=12, help="default 12")
    parser.add_argument("--steps", type=int, default=60, help="of a run (default 60)")
    parser.add_argument("--nproc", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--call-runs", type=int, default=3, help="processes for the cost of one call (default 3)")
    parser.add_argument("--call-rounds", type=int, default=200, help="turns of each side in each of them (default 200)")
    parser.add_argument(
        "--backend", choices=("gloo", "fake"), default="gloo", help="of the group of one call (default gloo)"
    )
    parser.add_argument("--calls-per-step", type=float, default=2.0, help="recorded a step by the example (default 2)")
    args = parser.parse_args()
    if args.steps <= WARM_UP_STEPS + 1 or args.pairs < 0 or min(args.call_runs, args.call_rounds) < 1:
        parser.error(
            f"--steps {args.steps}: must be more than {WARM_UP_STEPS + 1}; --pairs: at least 0; --call-rounds: 1"
        )
    unwind_on_sigterm()
    end_at_s = time.monotonic() + args.limit_s
    one_call, cpu_of_call = calls(args)
    figures = step_pairs(args, end_at_s)
    report(args, one_call, cpu_of_call, figures)


def report(
    args: argparse.Namespace,
    by_call: dict[str, list[float]],
    cpu_by_call: dict[str, list[float]],
    figures: dict[str, list[float]],
) -> None:
    """Print the figures with all of their sides, and the line of JSON."""
    us = {side: [value * 1e6 for value in values] for side, values in by_call.items()}
    figures_us = {side: {"min": min(values), "median": statistics.median(values)} for side, values in us.items()}
    more_us = {
        side: {
            "of_min": figures_us[side]["min"] - figures_us[UNTRACED]["min"],
            "median_of_rounds": statistics.median(a - b for a, b in zip(us[side], us[UNTRACED], strict=True)),
        }
        for side in (TRACED, IN_PYTHON)
    }
    cpu_us = {side: [value * 1e6 for value in values] for side, values in cpu_by_call.items()}
    for side, more in more_us.items():
        pairs = zip(cpu_us[side], cpu_us[UNTRACED], strict=True)
        more["cpu_median_of_rounds"] = statistics.median(a - b for a, b in pairs)
    print(
        f"\n  one all_reduce of a single rank on {args.backend}, call and wait, in us: min, median; what is more than untraced:\n"
        "  of the min, median of turns, and the same of the CPU time of the thread that calls"
    )
    for side, each in figures_us.items():
        beyond = "".join(f"{value:8.2f}" for value in more_us.get(side, {}).values())
        print(f"    {side:<18}{each['min']:8.2f}{each['median']:8.2f}    {beyond}")
    case: dict[str, Any] = {
        "backend": args.backend,
        "rounds": len(us[UNTRACED]),
        "call_us": figures_us,
        "call_more_us": more_us,
    }
    more_s = more_us[TRACED]["of_min"] / 1e6
    if args.pairs:
        case.update(report_steps(args, more_s, figures))
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
