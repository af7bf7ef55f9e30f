"""Shows what robust-run is for: kills a worker in the middle of a training, and compares what comes out.

    python examples/demo.py

Trains examples/train_gpt.py twice with two workers, about half a minute each. In the first run rank 1 gets SIGKILL; the
second is left alone. Both must end with the same weights, bit for bit; if not, this exits with 1. Everything is kept in
robust-runs/demo.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_gpt.py")
STEPS = 60
KILL_AT_STEP = 35
CHECKPOINT_EVERY = 20
VICTIM = 1
LIMIT_S = 300
"""One training that takes longer is ended."""


class DemoError(Exception):
    """Something that the demo shows did not happen. The message says what."""


@dataclass
class Kill:
    """The kill, and when training was where it had been. Times are seconds of the monotonic clock."""

    run_directory: str
    pid: int = 0
    killed_at_s: float = 0.0
    resumed_at_s: float = 0.0
    resumed_step: int = 0
    caught_up_at_s: float = 0.0

    def see(self, line: str) -> None:
        """Act on a line of the training's output: kill at the chosen step, then watch the recovery."""
        step = re.match(r"step (\d+)/", line)
        resumed = re.match(r"resumed from step (\d+)", line)
        if step and int(step[1]) == KILL_AT_STEP and not self.pid:
            self.pid = worker_pid(self.run_directory, VICTIM)
            say(f"step {KILL_AT_STEP} is done: killing rank {VICTIM} (pid {self.pid}) now")
            self.killed_at_s = time.monotonic()
            os.kill(self.pid, signal.SIGKILL)
        elif resumed and self.pid and not self.resumed_at_s:
            self.resumed_at_s = time.monotonic()
            self.resumed_step = int(resumed[1])
            say(f"{self.resumed_at_s - self.killed_at_s:.2f} s after the kill: two workers, checkpoint loaded")
        elif step and int(step[1]) == KILL_AT_STEP and not self.caught_up_at_s:
            self.caught_up_at_s = time.monotonic()
            say(f"{self.caught_up_at_s - self.killed_at_s:.2f} s after the kill: at step {KILL_AT_STEP} again")


def say(line: str) -> None:
    """Tell the reader what happens."""
    print(f"-- demo: {line}", flush=True)


def events(run_directory: str) -> Iterator[dict[str, Any]]:
    """Events of a run, oldest first."""
    with open(os.path.join(run_directory, "journal.jsonl"), encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError):  # the last line may be half written
                entry = json.loads(line)
                yield entry.get("event") or entry


def worker_pid(run_directory: str, local_rank: int) -> int:
    """Process id of a worker of the attempt that runs now. Raises DemoError if the journal does not tell."""
    pids = [event["pids"] for event in events(run_directory) if event.get("type") == "attempt_started"]
    if not pids or len(pids[-1]) <= local_rank:
        raise DemoError(f"{run_directory}/journal.jsonl names no process for rank {local_rank}")
    return int(pids[-1][local_rank])


def train(launcher: str, folder: str, name: str, see: Callable[[str], None]) -> float:
    """Train with two workers, passing every line of output to `see`. Returns seconds; raises DemoError if it fails."""
    command = [launcher, "--nproc-per-node", "2", "--run-id", name, "--log-dir", folder, SCRIPT]
    command += ["--steps", str(STEPS), "--checkpoint-every", str(CHECKPOINT_EVERY), "--log-every", "5"]
    command += ["--out", os.path.join(folder, f"{name}-gpt"), "--sample", "120"]
    shown = [os.path.relpath(part) if os.path.isabs(part) else part for part in command[1:]]
    say("$ " + " ".join([os.path.basename(launcher), *shown]))
    began_s = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        limit = threading.Timer(LIMIT_S, process.terminate)
        limit.daemon = True
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(f"   | {line}", end="", flush=True)
                see(line)
        except BaseException:
            process.terminate()  # or leaving this block would wait for the training to end
            raise
        finally:
            limit.cancel()
    if process.returncode != 0:
        raise DemoError(f"the training ended with exit code {process.returncode}; its logs are in {folder}/{name}")
    return time.monotonic() - began_s


def weights_sha256(folder: str, name: str) -> str:
    """Digest of the weights that a training ended with."""
    with open(os.path.join(folder, f"{name}-gpt", "final.json"), encoding="utf-8") as file:
        return str(json.load(file)["weights_sha256"])


def verdict(run_directory: str) -> str:
    """What robust-run says the failure was."""
    try:
        with open(os.path.join(run_directory, "incidents", "0001.json"), encoding="utf-8") as file:
            return str(json.load(file)["verdict"]["sentence"])
    except (OSError, ValueError, KeyError):
        return "none written"


def summarize(kill: Kill, folder: str, seconds: tuple[float, float]) -> bool:
    """Print what was seen. Returns whether both runs ended with the same weights."""
    killed, undisturbed = weights_sha256(folder, "killed"), weights_sha256(folder, "undisturbed")
    say("summary")
    for label, text in (
        ("killed", f"rank {VICTIM} (pid {kill.pid}) after step {KILL_AT_STEP}"),
        ("verdict", verdict(kill.run_directory)),
        ("workers back, resumed", f"{kill.resumed_at_s - kill.killed_at_s:.2f} s after the kill"),
        ("steps repeated", f"{KILL_AT_STEP - kill.resumed_step} (from the checkpoint of step {kill.resumed_step})"),
        ("time lost", f"{kill.caught_up_at_s - kill.killed_at_s:.2f} s, the repeated steps included"),
        ("whole run", f"{seconds[0]:.1f} s with the kill, {seconds[1]:.1f} s without"),
        ("weights with the kill", killed),
        ("weights without", undisturbed),
        ("they are", "equal, bit for bit" if killed == undisturbed else "DIFFERENT"),
        ("all of it is in", os.path.relpath(folder)),
    ):
        print(f"   {label:<22} {text}", flush=True)
    return killed == undisturbed


def run_demo(launcher: str, folder: str) -> bool:
    """Both trainings and the summary. Returns whether the weights are equal; raises DemoError if a run fails."""
    for name in ("killed", "undisturbed"):
        for leftover in (name, f"{name}-gpt"):
            shutil.rmtree(os.path.join(folder, leftover), ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    say(f"training a small GPT with two workers; rank {VICTIM} will be killed after step {KILL_AT_STEP}")
    kill = Kill(os.path.join(folder, "killed"))
    disturbed_s = train(launcher, folder, "killed", kill.see)
    if not kill.caught_up_at_s:
        raise DemoError(f"rank {VICTIM} was {'never' if not kill.pid else 'killed, but the training did not resume'}")
    say("the same training, left alone")
    undisturbed_s = train(launcher, folder, "undisturbed", lambda _line: None)
    return summarize(kill, folder, (disturbed_s, undisturbed_s))


def main() -> int:
    """Run the demo. Returns the exit code."""
    beside_python = os.path.join(os.path.dirname(sys.executable), "robust-run")
    parser = argparse.ArgumentParser(description="Kill a worker in the middle of a training; compare what comes out.")
    parser.add_argument("--launcher", default=beside_python, help="robust-run to use (default: beside this Python)")
    parser.add_argument("--folder", default=os.path.join("robust-runs", "demo"), help="where everything is kept")
    args = parser.parse_args()
    try:
        return 0 if run_demo(args.launcher, os.path.abspath(args.folder)) else 1
    except FileNotFoundError as error:
        say(f"{error.filename} is not there: install robust-run (pip install .), or name it with --launcher")
    except DemoError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted")
    return 1


if __name__ == "__main__":
    sys.exit(main())
