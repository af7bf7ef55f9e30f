"""All that only a GPU shows, by itself and within 25 minutes: the tests that need one, the benches that need one, and a page.

    make gpu
    python bench/on_gpu.py --page docs/gpu-run.md --only tests,recovery

One GPU is enough: two ranks of NCCL share it (see tests/gpu/ground.py). Parts, one after the other, each with a limit of its own:

    tests      tests/gpu: stalls and slow faults inside a real NCCL, sensors, page-locked buffers
    jobs       tests/gpu: whole jobs over NCCL: faults and their verdicts, restarts, results, a state kept in memory
    plugin     bench/nccl_plugin.py: what tracing costs a step; writes docs/nccl-gpu.md
    recovery   bench/recovery.py --backend nccl: from the SIGKILL of a rank to the next step, torchrun and robust-run
    copies     bench/gpu_copies.py: copies of a state into page-locked memory, against the bus

A part that fails or takes too long is named, and the others go on. The page has date, versions, and what each part said. Where
there is no GPU one line says so, nothing is written, and the exit code is 2; it is 1 if a part failed. The last line of standard
output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from gpu import machine  # noqa: E402

#: Of a part's output, so many lines are kept on the page.
MOST_LINES = 40
NO_GPU = 2
#: What a part that takes too long is given to end what it has started, and to say how far it came.
TIDY_S = 20.0
#: pytest; a plugin for benchmarks that some environments have warns of `-n`, and a warning is a failure.
TESTS = ("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:benchmark", "tests/gpu")
#: Those that wait more than they compute: several at a time.
JOBS = ("test_jobs.py", "test_results.py", "test_relaunch.py", "test_memory_job.py")


@dataclass(frozen=True)
class Part:
    """One program, by its arguments after the interpreter."""

    name: str
    argv: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True)
class Outcome:
    """What came of a part."""

    part: Part
    trouble: str
    """Empty: it ended well."""
    took_s: float
    lines: tuple[str, ...]
    """The last that it printed, without its JSON object."""
    result: dict[str, Any]
    """Its JSON object; empty: it printed none."""


def parts_of(launchers: Mapping[str, str]) -> tuple[Part, ...]:
    """Return all parts. `launchers`: options that name the launchers, for `recovery`."""
    sides = [word for name, path in launchers.items() for word in (f"--{name}", path)]
    recovery = [
        "--backend",
        "nccl",
        "--sides",
        "torchrun,robust_run",
        "--ranks",
        "2",
        "--restarts",
        "6",
        "--run-s",
        "5",
    ]
    return (
        Part("tests", (*TESTS, *(f"--ignore=tests/gpu/{name}" for name in JOBS)), 360.0),
        Part("jobs", (*TESTS[:-1], "-n", "3", *(f"tests/gpu/{name}" for name in JOBS)), 480.0),
        Part(
            "plugin",
            ("bench/nccl_plugin.py", "--rounds", "3", "--steps", "100000", "--write", "docs/nccl-gpu.md"),
            240.0,
        ),
        Part("recovery", ("bench/recovery.py", *recovery, "--timeout-s", "40", "--limit-s", "200", *sides), 240.0),
        Part("copies", ("bench/gpu_copies.py",), 60.0),
    )


def run(part: Part) -> Outcome:
    """Run a part in a session of its own, of which nothing is left afterwards."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, *part.argv], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, env={**os.environ, "PYTHONPATH": _python_path()},
        )  # fmt: skip
        try:
            code = process.wait(part.limit_s)
            trouble = f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            trouble = f"took longer than {part.limit_s:g} s"
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(
                    process.pid, signal.SIGINT
                )  # what it has started may be in sessions of its own, which it alone knows
                process.wait(TIDY_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        lines, result = split(output.read())
    return Outcome(part, trouble, time.monotonic() - began_s, lines, result)


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def split(text: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the last lines of what a part said, and the JSON object in its last line."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    result: dict[str, Any] = {}
    if lines and lines[-1].startswith("{"):
        with suppress(ValueError):
            result = json.loads(lines[-1])
            lines.pop()
    return tuple(lines[-MOST_LINES:]), result


def page(outcomes: Sequence[Outcome], versions: Mapping[str, str], day: date) -> str:
    """Return the page of docs/."""
    lines = [
        "# Measured on a GPU",
        "",
        f"Written by `make gpu` on {day.isoformat()}: {', '.join(f'{name} {each}' for name, each in versions.items())}.",
        "Two ranks share one GPU and talk over sockets, which NVIDIA does not support: steps are slow, ratios count.",
        "",
        "| part | | seconds |",
        "|---|---|---|",
        *(f"| {each.part.name} | {each.trouble or 'ended well'} | {each.took_s:.0f} |" for each in outcomes),
        "",
    ]
    for each in outcomes:
        lines += [f"## {each.part.name}", "", f"`python {' '.join(each.part.argv)}`", ""]
        lines += [*(f"    {line}" for line in each.lines), ""]
    return "\n".join(lines)


def wrappers(folder: Path) -> dict[str, str]:
    """Return the launchers beside this Python; where they are not installed, programs in `folder` that do the same."""
    found = {}
    for name, module in (("robust-run", "robust_run"), ("torchrun", "torch.distributed.run")):
        installed = Path(sys.executable).parent / name
        if not os.access(installed, os.X_OK):
            installed = folder / name
            installed.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            installed.chmod(0o700)
        found[name] = str(installed)
    return found


def main() -> int:
    """Run all parts. Returns the exit code."""
    parser = argparse.ArgumentParser(description="All that only a GPU shows: tests, benches, and a page of figures.")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "gpu-run.md")
    parser.add_argument("--only", default="", help="parts, as in tests,recovery")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if reason := machine.why_not():
        print(f"gpu: nothing is measured: {reason}")
        return NO_GPU
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_of(wrappers(Path(folder)))
        names = [part.name for part in parts]
        wanted = args.only.split(",") if args.only else names
        if unknown := [name for name in wanted if name not in names]:
            parser.error(f"{unknown[0]!r} is no part: choose from {','.join(names)}")
        outcomes = []
        for part in parts:
            if part.name in wanted:
                print(f"gpu: {part.name}: {' '.join(part.argv)} (at most {part.limit_s:g} s)", flush=True)
                outcomes.append(run(part))
                print(f"gpu: {part.name}: {outcomes[-1].trouble or 'ended well'} after {outcomes[-1].took_s:.0f} s")
                print("\n".join(f"    {line}" for line in outcomes[-1].lines), flush=True)
    args.page.write_text(page(outcomes, machine.versions(), date.today()), encoding="utf-8")
    print(f"gpu: written to {args.page}")
    told = {
        each.part.name: {"trouble": each.trouble, "took_s": round(each.took_s, 1), **each.result} for each in outcomes
    }
    print(json.dumps({"bench": "gpu", "schema": 1, "versions": machine.versions(), "parts": told}))
    return int(any(each.trouble for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
