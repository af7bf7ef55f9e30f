"""What the plugin for NCCL costs: time of one proxy step (start, three states, stop) through each version of NCCL's interface.

    python bench/nccl_plugin.py --rounds 8 --steps 200000

Without GPU and NCCL: the driver of the plugin's tests plays the steps. In each round every version runs once with a file to write
to and once without (the plugin is there and does nothing), straight after one another, the order changing from round to round.
The cost is the time with a file less that of the driver's own loop, each the best of all rounds, for whatever else the machine
does only adds to it (medians are shown beside); the aim is at most 100 ns. The last line of standard output is one JSON object.

Where there is a GPU, a small training on it is measured besides (`nccl_gpu.py`), and `--write docs/nccl-gpu.md` keeps what came
of it with the date and all versions. Where there is none, it says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from nccl_gpu import gpu_part  # noqa: E402
from sidebyside import print_result, spread  # noqa: E402

from robust_run.tracer.plugin import build, layout  # noqa: E402

DRIVER_SOURCE = os.path.join(ROOT, "tests", "tracer", "nccl", "driver.c")
VERSIONS = (3, 4, 5, 6)
ON, OFF = "on", "off"
AIM_NS = 100.0
RUN_LIMIT_S = 120.0


def compile_driver(folder: str) -> str:
    """Return the driver, or end the bench where there is no compiler."""
    compiler = next((path for path in map(shutil.which, build.COMPILERS) if path), None)
    if compiler is None:
        sys.exit(f"no C compiler ({', '.join(build.COMPILERS)}) is on the PATH: install one to run this bench")
    target = os.path.join(folder, "driver")
    argv = [compiler, "-std=gnu11", "-O2", "-pthread", "-o", target, DRIVER_SOURCE, "-ldl"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    if result.returncode:
        sys.exit(f"{compiler} cannot build {DRIVER_SOURCE}: {result.stderr.strip()[:300]}")
    return target


def run(driver: str, plugin: str, version: int, side: str, folder: str, steps: int) -> tuple[float, float]:
    """Return nanoseconds of a step, and of the driver's own part of it."""
    environment = {"PATH": os.environ.get("PATH", "")}
    if side == ON:
        path = os.path.join(folder, "trace")
        layout.create(path)
        environment[layout.PATH_VARIABLE] = path
    result = subprocess.run(
        [driver, plugin, str(version)],
        input=f"comm 0 bench 1 1 2 0\nbench {steps}\n",
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        env=environment,
        check=True,
    )
    step, own = result.stdout.split()
    return float(step), float(own)


def orders(rounds: int) -> Iterator[tuple[str, str]]:
    """Return the order of the two sides in each round."""
    for number in range(rounds):
        yield (ON, OFF) if number % 2 == 0 else (OFF, ON)


def measure(args: argparse.Namespace, driver: str, plugin: str, folder: str) -> dict[int, dict[str, list[float]]]:
    """Return, of each version, the figures of all rounds that fitted into the time."""
    found: dict[int, dict[str, list[float]]] = {version: {ON: [], OFF: [], "driver": []} for version in VERSIONS}
    end_at_s = time.monotonic() + args.limit_s
    for order in orders(args.rounds):
        for version in VERSIONS:
            if time.monotonic() > end_at_s:
                return found
            for side in order:
                step, own = run(driver, plugin, version, side, folder, args.steps)
                found[version][side].append(step)
                found[version]["driver"].append(own)
    return found


def report(found: dict[int, dict[str, list[float]]]) -> list[dict[str, object]]:
    """Print the figures of each version; return them for the line of JSON."""
    cases: list[dict[str, object]] = []
    print("\n  one proxy step, nanoseconds, median of the rounds")
    print("    interface        on       off    driver    on/off  cost (best)")
    for version, of in found.items():
        if not of[ON] or not of[OFF]:
            continue
        cost = min(of[ON]) - min(of["driver"])
        ratios = [on / off for on, off in zip(of[ON], of[OFF], strict=False)]
        figures = [statistics.median(values) for values in (of[ON], of[OFF], of["driver"], ratios)]
        print(f"    v{version:<8}" + "".join(f"{figure:10.1f}" for figure in [*figures, cost]))
        cases.append(
            {
                "interface": version,
                "step_on_ns": spread(of[ON]),
                "step_off_ns": spread(of[OFF]),
                "driver_ns": spread(of["driver"]),
                "cost_ns": round(cost, 1),
                "ratio": spread(ratios),
                "within_aim": cost <= AIM_NS,
            }
        )
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="default 8")
    parser.add_argument(
        "--steps", type=int, default=200_000, help="of each of ten runs within a round (default 200000)"
    )
    parser.add_argument("--limit-s", type=float, default=300.0, help="stop after so long (default 300)")
    parser.add_argument("--gpu-rounds", type=int, default=5, help="of all sides on a GPU, if there is one (default 5)")
    parser.add_argument("--gpu-steps", type=int, default=200, help="of each training on a GPU (default 200)")
    parser.add_argument("--write", default="", metavar="PATH", help="keep what was measured on a GPU as a page there")
    args = parser.parse_args()
    if args.rounds < 1 or args.steps < 1:
        parser.error(f"--rounds {args.rounds}, --steps {args.steps}: must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        plugin = build.ensure(os.path.join(folder, "cache"), shipped="")
        if not plugin.path:
            sys.exit(plugin.reason)
        cases = report(measure(args, compile_driver(folder), plugin.path, folder))
        gpu = gpu_part(plugin.path, args.gpu_rounds, args.gpu_steps, args.write)
    print_result("nccl_plugin", cases, aim_ns=AIM_NS, gpu=gpu)


if __name__ == "__main__":
    main()
