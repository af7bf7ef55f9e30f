"""Shows what roles are for: a policy learns while its rollouts are killed, and the trainer never notices.

    python examples/rl/demo.py

Runs examples/rl/dapo.toml twice, from nothing to a mean reward of 0.9. In the first run a rollout gets SIGKILL every 5 s, by
turns; the second is left alone. Says at the end what reward was reached, how often it struck, whether the trainer is still the
process that it was, and how many tokens a second came to it with and without. Everything is kept in robust-runs/demo-rl.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(HERE))

from struck import DemoError, kill, newest_pid, run_job, say  # noqa: E402 - in the folder above

PROGRAM = "dapo.py"
LIMIT_S = 1800
"""A run that takes longer is ended."""
MEMBERS = 2
SHOWN = re.compile(r"\[trainer/0\]: (trainer|step|ends)|worker|restart|signal|SIGKILL|anew")


@dataclass
class Run:
    """One training, and what was done to it."""

    folder: str
    seconds: float = 0.0
    killed: list[int] = field(default_factory=list)
    """Processes, in the order in which they were killed."""

    @property
    def final(self) -> dict[str, Any]:
        """What it ended with."""
        with open(os.path.join(self.folder, "final.json"), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Steps of its trainer, as it wrote them down."""
        with open(os.path.join(self.folder, "trained.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens that came to the trainer, from its first step to its last."""
        lines = self.lines
        took_s = lines[-1]["at_s"] - lines[0]["at_s"]
        return float(sum(line["tokens"] for line in lines[1:]) / took_s) if took_s > 0 else 0.0


def strike(run: Run, every_s: float, over: threading.Event) -> None:
    """Kill a rollout every so many seconds, by turns, until the run is over; the first time when training has begun."""
    while not os.path.exists(os.path.join(run.folder, "trained.jsonl")):
        if over.wait(0.2):
            return
    while not over.wait(every_s):
        member = f"rollout-{len(run.killed) % MEMBERS}"
        pid = newest_pid(run.folder, member)
        if pid is None or pid in run.killed:
            say(f"{member} is not back yet, it is left alone this time")
            continue
        if kill(pid, PROGRAM):
            say(f"{member} (pid {pid}) gets SIGKILL now")
            run.killed.append(pid)


def train(launcher: str, folder: str, name: str, every_s: float, words: list[str]) -> Run:
    """Run the job, killing a rollout every so many seconds; 0: never. Raises DemoError if it fails."""
    run = Run(os.path.join(folder, name))
    with open(os.path.join(HERE, "dapo.toml"), encoding="utf-8") as file:
        text = file.read()
    roles = os.path.join(folder, f"{name}.toml")
    trainer = json.dumps([os.path.join(HERE, PROGRAM), *words])
    with open(roles, "w", encoding="utf-8") as file:
        text = text.replace('command = "examples/rl/dapo.py"', f"command = {trainer}", 1)
        file.write(text.replace('"examples/rl/dapo.py"', json.dumps([os.path.join(HERE, PROGRAM)])))
    command = [launcher, "--roles", roles, "--log-dir", folder, "--run-id", name]
    began_s = time.monotonic()
    run_job(command, run.folder, SHOWN, LIMIT_S, (lambda over: strike(run, every_s, over)) if every_s else None)
    run.seconds = time.monotonic() - began_s
    return run


def summarize(struck: Run, alone: Run, target: float) -> bool:
    """Print what was seen. Returns whether the reward was reached and the trainer was untouched."""
    pids = {line["pid"] for line in struck.lines}
    trained = [number for line in struck.lines for number in line["trained"]]
    twice = len(trained) - len(set(trained))
    untouched = pids == {struck.final["pid"]}
    reached = struck.final["reward"] >= target
    share = struck.tokens_per_s / alone.tokens_per_s if alone.tokens_per_s else 0.0
    say("summary")
    for label, what in (
        ("mean reward", f"{struck.final['reward']:.3f} after {struck.final['step']} steps, {struck.seconds:.0f} s"),
        ("left alone", f"{alone.final['reward']:.3f} after {alone.final['step']} steps, {alone.seconds:.0f} s"),
        ("rollouts killed", str(len(struck.killed))),
        (
            "trainer",
            f"untouched: pid {min(pids)} from the first step to the last" if untouched else f"RESTARTED: {pids}",
        ),
        ("problems trained twice", str(twice)),
        (
            "tokens a second",
            f"{struck.tokens_per_s:.0f} with kills, {alone.tokens_per_s:.0f} without: {share:.2f} of them",
        ),
    ):
        print(f"   {label:<24} {what}")
    return reached and untouched and not twice


def main() -> int:
    """Run the demo. Returns the exit code."""
    beside_python = os.path.join(os.path.dirname(sys.executable), "robust-run")
    parser = argparse.ArgumentParser(description="A policy learns while its rollouts are killed.")
    parser.add_argument("--launcher", default=beside_python, help="robust-run to use (default: beside this Python)")
    parser.add_argument("--folder", default=os.path.join("robust-runs", "demo-rl"), help="where everything is kept")
    parser.add_argument("--kill-every", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--target", type=float, default=0.9, help="mean reward at which a run ends")
    parser.add_argument("--steps", type=int, default=2000, help="a run ends after so many")
    args = parser.parse_args()
    folder = os.path.abspath(args.folder)
    for leftover in ("struck", "alone"):
        shutil.rmtree(os.path.join(folder, leftover), ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    words = ["--target", str(args.target), "--steps", str(args.steps)]
    try:
        struck = train(args.launcher, folder, "struck", args.kill_every, words)
        alone = train(args.launcher, folder, "alone", 0.0, words)
        return 0 if summarize(struck, alone, args.target) else 1
    except FileNotFoundError as error:
        say(f"{error.filename} is not there: install robust-run (pip install .), or name it with --launcher")
    except DemoError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted")
    return 1


if __name__ == "__main__":
    sys.exit(main())
