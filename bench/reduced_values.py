"""What `--check-reduced` costs: CPU time of the thread that trains, for a call when nothing is checked, and for a check.

    python bench/reduced_values.py --rounds 40

Two ranks on gloo, recorded in Python. A turn is some steps of some all_reduces each, the largest of which is as large as a
window of elements that are added up. Of each side the fastest turn counts. Three sides take turns in one process: nothing to
check with; there, but no check is due; a check in each step. From these follows what a step costs with `--check-reduced N`, as a
part of a step of so many calls and so long; the product's limit is 0.2 %. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from sidebyside import print_result

from robust_run.tracer.files import arming

PROGRAM = """
import importlib.util, json, os, sys, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as library, torch.distributed.distributed_c10d as distributed
from robust_run.tracer.files import reduced, ring
arm, rank, rounds, steps, calls = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("worker_side", arm)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

def fail(error):
    raise error

ring.create(f"{rank}.ring", rank, 2)
hooks = worker.load("hooks").Hooks(worker.load("recorder").Ring(f"{rank}.ring", fail), distributed, library, lambda: None)
hooks.install()
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=rank, world_size=2)
plain = library.ProcessGroup.allreduce, library.Work.wait
ways = {"none": (*plain, lambda: None)}
for side, every in (("idle", 10**9), ("each", 1)):
    library.ProcessGroup.allreduce, library.Work.wait = plain
    reduced.create(f"{rank}.{side}", every)
    end_step = worker.load("reduced").install(f"{rank}.{side}", hooks, torch)
    ways[side] = library.ProcessGroup.allreduce, library.Work.wait, end_step
small, large = torch.ones(8), torch.ones(1 << 16)
found = {side: [] for side in ways}
for number in range(rounds):
    for side in list(ways)[number % 3:] + list(ways)[:number % 3]:
        library.ProcessGroup.allreduce, library.Work.wait, end_step = ways[side]
        end_step()
        used = time.thread_time()
        for _ in range(steps):
            for _ in range(calls - 1):
                dist.all_reduce(small)
            dist.all_reduce(large)
            end_step()
        found[side].append((time.thread_time() - used) / steps)
count, _ = reduced.read(f"{rank}.each", rank, 0)
assert count >= rounds * (steps - 1), f"{count} checks"
if rank == 0:
    print(json.dumps(found))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="turns of each side (default 40)")
    parser.add_argument("--steps", type=int, default=10, help="of a turn (default 10)")
    parser.add_argument("--calls", type=int, default=20, help="of a step (default 20)")
    parser.add_argument("--every", type=int, default=100, help="N of --check-reduced (default 100)")
    parser.add_argument("--step-ms", type=float, default=100.0, help="of which the cost is a part (default 100)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="robust-reduced-") as folder:
        arm = os.path.join(arming.ARM_FOLDER, "sitecustomize.py")
        numbers = [str(number) for number in (args.rounds, args.steps, args.calls)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, arm, str(rank), *numbers], cwd=folder, stdout=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank has failed")
    sides = {side: min(steps) * 1e6 for side, steps in json.loads(said[0]).items()}
    call_us = max(sides["idle"] - sides["none"], 0.0) / args.calls
    check_us = max(sides["each"] - sides["idle"], 0.0)
    step_us = call_us * args.calls + check_us * 2 / args.every  # in the step before a check calls are looked at, too
    share = step_us / (args.step_ms * 1000)
    print(f"a step: {sides['none']:.0f} us without, {sides['idle']:.0f} us idle, {sides['each']:.0f} us with a check")
    print(f"a call costs {call_us:.2f} us more, a check {check_us:.0f} us: {step_us:.1f} us a step, {share:.4%}")
    case = {"call_us": round(call_us, 3), "check_us": round(check_us, 1), "step_us": round(step_us, 2), **vars(args)}
    aim = {"ratio": "share of a step", "median": share, "rounds": args.rounds, "aim": 0.002}
    print_result("reduced_values", [case], ratios=[aim])


if __name__ == "__main__":
    main()
