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
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT_S = 1800
"""A run that takes longer is ended."""
MEMBERS = 2
SHOWN = re.compile(rb"\[trainer/0\]: (trainer|step|ends)|worker|restart|signal|SIGKILL|anew")


class DemoError(Exception):
    """Something that the demo shows did not happen. The message says what."""


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


def say(line: str) -> None:
    """Tell the reader what happens."""
    print(f"-- demo: {line}", flush=True)


def newest_pid(folder: str, member: str) -> int | None:
    """Return the worker of a member that was started last, as its journal says; None: none yet."""
    found = None
    members = os.path.join(folder, "members")
    for name in sorted(os.listdir(members)) if os.path.isdir(members) else []:
        journal = os.path.join(members, name, "journal.jsonl")
        if name.startswith(f"{member}.") and os.path.exists(journal):
            with open(journal, encoding="utf-8") as file:
                for line in file:
                    event = json.loads(line).get("event", {}) if line.endswith("\n") else {}
                    if event.get("type") == "attempt_started":
                        found = int(event["pids"][0])
    return found


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
        say(f"{member} (pid {pid}) gets SIGKILL now")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        run.killed.append(pid)


def train(launcher: str, folder: str, name: str, every_s: float, words: list[str]) -> Run:
    """Run the job, killing a rollout every so many seconds; 0: never. Raises DemoError if it fails."""
    run = Run(os.path.join(folder, name))
    with open(os.path.join(HERE, "dapo.toml"), encoding="utf-8") as file:
        text = file.read()
    roles = os.path.join(folder, f"{name}.toml")
    trainer = json.dumps([os.path.join(HERE, "dapo.py"), *words])
    with open(roles, "w", encoding="utf-8") as file:
        text = text.replace('command = "examples/rl/dapo.py"', f"command = {trainer}", 1)
        file.write(text.replace('"examples/rl/dapo.py"', json.dumps([os.path.join(HERE, "dapo.py")])))
    command = [launcher, "--roles", roles, "--log-dir", folder, "--run-id", name]
    say("$ robust-run " + " ".join(os.path.relpath(each) if os.path.isabs(each) else each for each in command[1:]))
    began_s, over = time.monotonic(), threading.Event()
    striker = threading.Thread(target=strike, args=(run, every_s, over), daemon=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        limit = threading.Timer(LIMIT_S, process.terminate)
        limit.daemon = True
        limit.start()
        if every_s:
            striker.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if SHOWN.search(line):
                    print("   |", line.decode(errors="replace").rstrip(), flush=True)
        except BaseException:
            process.terminate()
            raise
        finally:
            limit.cancel()
            over.set()
    if process.returncode != 0:
        raise DemoError(f"the job ended with exit code {process.returncode}; its logs are in {run.folder}")
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
