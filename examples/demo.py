"""Shows what robust-run is for: kills one worker of a training and hangs another, and compares what comes out.

    python examples/demo.py

Trains examples/train_gpt.py twice with two workers, about half a minute each. In the first run rank 1 gets SIGKILL, and later
rank 0 is stopped (SIGSTOP), so that the other waits for it for ever; the second run is left alone. Both must end with the same
weights, bit for bit; if not, this exits with 1. Everything is kept in robust-runs/demo, and its pages open in a browser.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cast import Cast

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_gpt.py")
STEPS = 60
CHECKPOINT_EVERY = 10
LIMIT_S = 300
"""One training that takes longer is ended."""


RECORDING = Cast(time.monotonic)


class DemoError(Exception):
    """Something that the demo shows did not happen. The message says what."""


@dataclass
class Fault:
    """What is done to a rank, and when training was where it had been. Times are seconds since the epoch."""

    number: int
    """From 1, as incidents are counted."""
    rank: int
    at_step: int
    signal: signal.Signals
    done: str
    """What it was, in a word."""
    pid: int = 0
    done_at_s: float = 0.0
    resumed_at_s: float = 0.0
    resumed_step: int = 0
    caught_up_at_s: float = 0.0

    def see(self, line: str, run_directory: str) -> None:
        """Act on a line of the training's output: do it at the chosen step, then watch the recovery."""
        step = re.match(r"step (\d+)/", line)
        resumed = re.match(r"resumed from step (\d+)", line)
        if step and int(step[1]) == self.at_step and not self.pid:
            self.pid = worker_pid(run_directory, self.rank)
            say(f"step {self.at_step}: rank {self.rank} (pid {self.pid}) gets {self.signal.name} now")
            self.done_at_s = time.time()
            os.kill(self.pid, self.signal)
        elif resumed and self.pid and not self.resumed_at_s:
            self.resumed_at_s, self.resumed_step = time.time(), int(resumed[1])
            say(f"{self.since(self.resumed_at_s)}: two workers again, checkpoint of step {self.resumed_step} loaded")
        elif step and int(step[1]) == self.at_step and self.pid and not self.caught_up_at_s:
            self.caught_up_at_s = time.time()
            say(f"{self.since(self.caught_up_at_s)}: at step {self.at_step} again")

    def since(self, at_s: float) -> str:
        """Return how long after it a moment was."""
        return f"{at_s - self.done_at_s:.1f} s after {self.signal.name}"


def say(line: str) -> None:
    """Tell the reader what happens."""
    show(f"-- demo: {line}")


def show(line: str) -> None:
    """Print a line, and record it."""
    RECORDING.add(line.replace(f"{os.getcwd()}/", ""))
    print(line, flush=True)


def keep_recording(folder: str) -> None:
    """Write what was printed, as a recording of a terminal and as a picture that moves."""
    os.makedirs(folder, exist_ok=True)
    for name, content in (("demo.cast", RECORDING.asciicast()), ("demo.svg", RECORDING.svg())):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content)


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
    command += ["--out", os.path.join(folder, f"{name}-gpt")]
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
            for line in folded(process.stdout):
                show(f"   | {line}".rstrip("\n"))
                see(line)
        except BaseException:
            process.terminate()  # or leaving this block would wait for the training to end
            raise
        finally:
            limit.cancel()
    if process.returncode != 0:
        raise DemoError(f"the training ended with exit code {process.returncode}; its logs are in {folder}/{name}")
    return time.monotonic() - began_s


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Lines without the tracebacks of ranks that lost their peer: of each only the last line."""
    traceback: list[str] = []
    for line in itertools.chain(lines, [""]):
        if re.match(r"\[rank\d+\]: ", line):
            traceback.append(line)
            continue
        if traceback:
            yield f"({len(traceback)} lines of a traceback, the last one:) {traceback[-1]:.110}".rstrip() + "\n"
            traceback = []
        if line:
            yield line


def weights_sha256(folder: str, name: str) -> str:
    """Digest of the weights that a training ended with."""
    with open(os.path.join(folder, f"{name}-gpt", "final.json"), encoding="utf-8") as file:
        return str(json.load(file)["weights_sha256"])


def incident(run_directory: str, fault: Fault) -> dict[str, Any]:
    """What robust-run says of a fault. Raises DemoError if it says nothing, or names another rank."""
    path = os.path.join(run_directory, "incidents", f"{fault.number:04d}.json")
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        ranks = found["verdict"]["ranks"]
    except (OSError, ValueError, KeyError) as error:
        raise DemoError(f"{path} does not say what happened: {error}") from error
    if ranks != [fault.rank]:
        raise DemoError(f"rank {fault.rank} was {fault.done}, but {path} names ranks {ranks}")
    return found


def summarize(faults: list[Fault], folder: str, seconds: tuple[float, float]) -> bool:
    """Print what was seen. Returns whether both runs ended with the same weights."""
    faulted, undisturbed = weights_sha256(folder, "faulted"), weights_sha256(folder, "undisturbed")
    run_directory = os.path.join(folder, "faulted")
    rows = []
    for fault in faults:
        seen = incident(run_directory, fault)
        found_s = max(seen["decided_s"] - fault.done_at_s, 0.0)
        repeated = fault.at_step - fault.resumed_step
        rows += [
            (f"rank {fault.rank} was {fault.done}", f"after step {fault.at_step}"),
            ("  verdict", f"{seen['verdict']['sentence']}"),
            ("  time lost", f"{fault.caught_up_at_s - fault.done_at_s:.1f} s: {found_s:.1f} s until the verdict, then a "
             f"new start and {repeated} steps made again"),
        ]  # fmt: skip
    page = os.path.relpath(os.path.join(run_directory, "report.html"))
    rows += [
        ("whole run", f"{seconds[0]:.0f} s with both faults, {seconds[1]:.0f} s without"),
        ("weights with faults", faulted[:32]),
        ("weights without", undisturbed[:32]),
        ("they are", "equal, bit for bit" if faulted == undisturbed else "DIFFERENT"),
        ("open in a browser", page),
        *(("" if number else "  and of each fault", os.path.join(os.path.dirname(page), "incidents", f"{each.number:04d}.html"))
          for number, each in enumerate(faults)),
    ]  # fmt: skip
    say("summary")
    for label, text in rows:
        show(f"   {label:<20} {text}")
    return faulted == undisturbed


def run_demo(launcher: str, folder: str) -> bool:
    """Both trainings and the summary. Returns whether the weights are equal; raises DemoError if a run fails."""
    faults = [
        Fault(number=1, rank=1, at_step=15, signal=signal.SIGKILL, done="killed"),
        Fault(number=2, rank=0, at_step=45, signal=signal.SIGSTOP, done="stopped"),
    ]
    for name in ("faulted", "undisturbed"):
        for leftover in (name, f"{name}-gpt"):
            shutil.rmtree(os.path.join(folder, leftover), ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    say("training a small GPT with two workers; one will be killed, later one will hang")
    run_directory = os.path.join(folder, "faulted")

    def see(line: str) -> None:
        current = next((fault for fault in faults if not fault.caught_up_at_s), None)
        if current is not None:
            current.see(line, run_directory)

    disturbed_s = train(launcher, folder, "faulted", see)
    for fault in faults:
        if not fault.caught_up_at_s:
            raise DemoError(
                f"rank {fault.rank} was {fault.done if fault.pid else 'left alone'}, and the training did not resume"
            )
    say("the same training, left alone")
    undisturbed_s = train(launcher, folder, "undisturbed", lambda _line: None)
    return summarize(faults, folder, (disturbed_s, undisturbed_s))


def main() -> int:
    """Run the demo. Returns the exit code."""
    beside_python = os.path.join(os.path.dirname(sys.executable), "robust-run")
    parser = argparse.ArgumentParser(description="Kill a worker of a training, hang another; compare what comes out.")
    parser.add_argument("--launcher", default=beside_python, help="robust-run to use (default: beside this Python)")
    parser.add_argument("--folder", default=os.path.join("robust-runs", "demo"), help="where everything is kept")
    parser.add_argument("--record", metavar="FOLDER", help="also write what is printed here, as demo.cast and demo.svg")
    args = parser.parse_args()
    try:
        is_equal = run_demo(args.launcher, os.path.abspath(args.folder))
        if args.record:
            keep_recording(args.record)
        return 0 if is_equal else 1
    except FileNotFoundError as error:
        say(f"{error.filename} is not there: install robust-run (pip install .), or name it with --launcher")
    except DemoError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted")
    return 1


if __name__ == "__main__":
    sys.exit(main())
