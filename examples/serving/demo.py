"""Shows that answers do not change when what gives them is killed: experts all the time, attention members now and then.

    python examples/serving/demo.py

Runs examples/serving/serving.toml. Every 3 s an expert member gets SIGKILL, by turns, and after each third one an attention
member as well. Says at the end how many requests were answered, whether each answer is that of the undivided model to the last
bit, how long experts were away, and how long requests waited for them. Everything is kept in robust-runs/demo-serving.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(HERE))

import reference  # noqa: E402 - beside this file
from frontend import read, request  # noqa: E402
from struck import DemoError, kill, newest_pid, run_job, say  # noqa: E402 - in the folder above
from words import Answer  # noqa: E402

PROGRAM = "serve.py"
EXPERTS, ATTENTION = 3, 2
"""Members, as serving.toml has them."""
ATTENTION_EACH = 3
"""After so many experts an attention member is killed as well."""
LIMIT_S = 900
"""A run that takes longer is ended."""
SHOWN = re.compile(r"\[frontend/0\]: \d|holds experts|experts had|is lost|is back|SIGKILL|is done")
BACK = re.compile(r"expert/\d+ is back after ([\d.]+) s")
BOTH = re.compile(r"at (\d+)% of them experts had")


@dataclass
class Run:
    """The job, and what was done to it."""

    folder: str
    seconds: float = 0.0
    killed: list[str] = field(default_factory=list)
    """Members, in the order in which they were killed."""
    pids: set[int] = field(default_factory=set)
    away_s: list[float] = field(default_factory=list)
    """How long experts were away, as attention members saw it."""
    both: list[int] = field(default_factory=list)
    """Percent of attention's turns at which experts had the other micro-batch."""


def victims() -> Iterator[str]:
    """Yield who is killed: experts by turns, and attention members now and then."""
    for number in range(1 << 30):
        yield f"expert-{number % EXPERTS}"
        if number % ATTENTION_EACH == ATTENTION_EACH - 1:
            yield f"attention-{number // ATTENTION_EACH % ATTENTION}"


def strike(run: Run, every_s: float, over: threading.Event) -> None:
    """Kill a member every so many seconds until the run is over; the first time when answers have come."""
    answers = os.path.join(run.folder, "answers.jsonl")
    while not os.path.exists(answers) or not os.path.getsize(answers):
        if over.wait(0.2):
            return
    for member in victims():
        pid = None
        while pid is None or pid in run.pids:  # it is not back yet: wait for it
            if over.wait(every_s):
                return
            pid = newest_pid(run.folder, member)
        if kill(pid, PROGRAM):
            say(f"{member} (pid {pid}) gets SIGKILL now")
            run.killed.append(member)
            run.pids.add(pid)


def serve(launcher: str, folder: str, every_s: float, words: list[str]) -> Run:
    """Run the job, killing a member every so many seconds; 0: never. Raises DemoError if it fails."""
    run = Run(os.path.join(folder, "run"))
    with open(os.path.join(HERE, "serving.toml"), encoding="utf-8") as file:
        text = file.read()
    roles, program = os.path.join(folder, "serving.toml"), os.path.join(HERE, PROGRAM)
    with open(roles, "w", encoding="utf-8") as file:
        file.write(text.replace('"examples/serving/serve.py"', json.dumps([program, *words])))
    command = [launcher, "--roles", roles, "--log-dir", folder, "--run-id", "run"]
    began_s = time.monotonic()

    def hear(line: str) -> None:
        run.away_s += map(float, BACK.findall(line))
        run.both += map(int, BOTH.findall(line))

    run_job(command, run.folder, SHOWN, LIMIT_S, (lambda over: strike(run, every_s, over)) if every_s else None, hear)
    run.seconds = time.monotonic() - began_s
    return run


def differing(answers: dict[int, Answer], seed: int) -> list[int]:
    """Return the numbers of requests whose answer is not that of the undivided model."""
    found = []
    for count, (number, answer) in enumerate(sorted(answers.items())):
        if count % 200 == 199:
            say(f"{count + 1} of {len(answers)}")
        asked = request(number, seed)
        if not answer.error and reference.generate(asked.prompt, asked.most) != (answer.text, answer.digest):
            found.append(number)
    return found


def summarize(run: Run, count: int, seed: int, *, is_struck: bool) -> bool:
    """Print what was seen. Returns whether all was answered as the undivided model does, and experts were killed."""
    answers = read(os.path.join(run.folder, "answers.jsonl"))
    say("the undivided model answers the same requests, in one process")
    wrong = differing(answers, seed)
    refused = sum(bool(each.error) for each in answers.values())
    again = sum(each.asked_again > 0 for each in answers.values())
    waits_s = [each.longest_wait_s for each in answers.values() if not each.error] or [0.0]
    experts = sum(each.startswith("expert") for each in run.killed)
    away = f"{median(run.away_s):.2f} s, at most {max(run.away_s):.2f} s" if run.away_s else "never"
    share = f"{median(run.both):.0f}%" if run.both else "an unknown share"
    say("summary")
    for label, what in (
        (
            "requests",
            f"{len(answers)} of {count} answered in {run.seconds:.0f} s, {refused} of them with why there is none",
        ),
        ("tokens", str(sum(each.tokens for each in answers.values()))),
        ("as the undivided model", f"NO: not {wrong[:10]}" if wrong else "yes, to the last bit of all logits"),
        ("killed", f"{experts} expert members, {len(run.killed) - experts} attention members"),
        ("experts were away", away),
        ("asked again meanwhile", f"experts of {again} requests"),
        ("waits for a layer", f"the longest of each request: {median(waits_s):.2f} s, at most {max(waits_s):.2f} s"),
        ("two micro-batches", f"at {share} of attention's turns experts had the other one"),
    ):
        print(f"   {label:<24} {what}")
    return len(answers) == count and not wrong and (experts > 0) is is_struck


def main() -> int:
    """Run the demo. Returns the exit code."""
    beside_python = os.path.join(os.path.dirname(sys.executable), "robust-run")
    parser = argparse.ArgumentParser(description="Answers do not change when what gives them is killed.")
    parser.add_argument("--launcher", default=beside_python, help="robust-run to use (default: beside this Python)")
    parser.add_argument(
        "--folder", default=os.path.join("robust-runs", "demo-serving"), help="where everything is kept"
    )
    parser.add_argument("--kill-every", type=float, default=3.0, metavar="SECONDS", help="0: nobody is killed")
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--copies", type=int, default=2, help="members that hold each expert")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = os.path.abspath(args.folder)
    shutil.rmtree(os.path.join(folder, "run"), ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    words = [f"--{name}={getattr(args, name)}" for name in ("requests", "copies", "seed")]
    try:
        run = serve(args.launcher, folder, args.kill_every, words)
        return 0 if summarize(run, args.requests, args.seed, is_struck=args.kill_every > 0) else 1
    except FileNotFoundError as error:
        say(f"{error.filename} is not there: install robust-run (pip install .), or name it with --launcher")
    except DemoError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted")
    return 1


if __name__ == "__main__":
    sys.exit(main())
