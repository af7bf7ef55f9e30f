"""Real jobs for tests: starts `robust-run` as a user would, waits for things to happen, and finds what is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: A program that trains until its attempt is number `restarts`, and notes when its ranks have talked to each other.
ALL_REDUCE = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
x = torch.ones(4)
dist.all_reduce(x)
assert x.tolist() == [float(dist.get_world_size())] * 4
open(f"reduced-{attempt}-{rank}", "w").close()
while int(attempt) < %(restarts)d:
    x.fill_(1)
    dist.all_reduce(x)
    time.sleep(0.01)
dist.destroy_process_group()
"""

#: A job that takes longer than this in a test is stuck.
STUCK_S = 300.0

#: Before a job's command: what a launcher gives a second (a worker that is forked, one that cleans up) may take a minute there,
#: as it may on a busy machine.
PATIENT = (
    sys.executable,
    "-c",
    "import sys; from robust_run.launcher.agent.workers import process_tree; from robust_run.launcher.agent.warm import host; "
    "host.FORK_S = host.FORK_AMONG_NODES_S = process_tree.CLEANERS_S = 60.0; "
    "from robust_run.cli import main; sys.argv[:4] = ['robust-run']; main()",
)


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = STUCK_S) -> Any:
    """Return the condition's first true value; fail if it takes too long."""
    give_up_at = time.monotonic() + timeout_s
    asked_at, used_s = time.monotonic(), time.thread_time()
    while not (value := condition()):
        now, now_s = time.monotonic(), time.thread_time()
        assert now < give_up_at, f"waited {timeout_s:g} s for {what}"
        # Asking takes CPU that what is waited for needs: a tenth of one at most, and half of the time where it starts programs.
        time.sleep(max(0.01, now - asked_at, min(1.0, 10 * (now_s - used_s))))
        asked_at, used_s = time.monotonic(), now_s
    return value


class Job:
    """One running `robust-run`."""

    def __init__(self, process: subprocess.Popen[str], log_dir: Path, run_id: str) -> None:
        self.process = process
        self.pid = process.pid
        self.run_dir = log_dir / run_id
        self.run_id = run_id
        self.out = self.err = ""

    def finish(self, timeout_s: float = STUCK_S) -> int:
        """Wait for the end; return the exit code as `subprocess` gives it."""
        out, err = self.process.communicate(timeout=timeout_s)
        self.out, self.err = self.out + (out or ""), self.err + (err or "")
        return self.process.returncode

    def signal(self, number: int) -> None:
        """Signal the process the user started."""
        os.kill(self.pid, number)

    def journal(self) -> list[dict[str, Any]]:
        """Return the journal's lines so far, the header first."""
        path = self.run_dir / "journal.jsonl"
        if not path.exists():
            return []
        lines = path.read_bytes().split(b"\n")[:-1]  # the last one may be half written
        return [json.loads(line) for line in lines if line.endswith(b"}")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind so far."""
        return [line["event"] for line in self.journal() if line.get("event", {}).get("type") == kind]

    def after(self, kind: str, count: int, wanted: str) -> list[dict[str, Any]]:
        """Return the events `wanted` that have followed the count-th event of a kind so far."""
        found, seen = [], 0
        for line in self.journal():
            event = line.get("event", {})
            seen += event.get("type") == kind
            if seen >= count and event.get("type") == wanted:
                found.append(event)
        return found

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """Return the actions of one kind so far."""
        return [line["action"] for line in self.journal() if line.get("action", {}).get("type") == kind]

    def pids(self, attempt: int = 0) -> list[int]:
        """Return the workers' pids of an attempt, by rank, once they have all been started."""

        def started() -> list[int] | None:
            return next(
                (event["pids"] for event in self.events("attempt_started") if event["attempt"] == attempt), None
            )

        return wait_for(started, f"attempt {attempt} of {self.run_id}")

    def agent_pid(self) -> int:
        """Return the pid of the agent, below the process the user started."""
        return wait_for(lambda: self.journal() and self.journal()[0]["pid"], "the journal's first line")

    def wait_for_file(self, name: str, path: Path) -> Path:
        """Wait until a worker has made a file."""
        return wait_for(lambda: (path / name).exists() and path / name, f"{name} in {path}")

    def leftovers(self) -> list[str]:
        """Return the processes of this job that still run, wherever they went: all of them carry its mark."""
        found = []
        marker = f"TEST_JOB={self.run_id}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                state = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                cmdline = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marker in environ and state not in "ZX":
                found.append(f"{entry}: {cmdline}")
        return found

    def assert_nothing_left(self, timeout_s: float = 60.0) -> None:
        """Fail if a process of this job lives on."""
        give_up_at = time.monotonic() + timeout_s
        while (left := self.leftovers()) and time.monotonic() < give_up_at:
            time.sleep(0.02)
        assert not left, left
        memory = Path("/dev/shm")
        if self.process.poll() is not None and memory.is_dir():
            wait_for(
                lambda: not list(memory.glob(f"robust-run-{self.run_id}-*")),
                "the folder in memory to be gone",
                timeout_s,
            )


@contextmanager
def running(
    tmp_path: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    log_dir: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    prefix: tuple[str, ...] = (),
    python: str = sys.executable,
) -> Iterator[Job]:
    """Start a job; whatever happens in the test, nothing of it survives."""
    run_id = f"t{uuid.uuid4().hex[:12]}"
    log_dir = log_dir or tmp_path / "runs"
    argv = [*prefix, python, "-m", "robust_run", "--log-dir", str(log_dir), "--run-id", run_id, *arguments]
    process = subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        cwd=cwd or tmp_path,
        env={**os.environ, "TEST_JOB": run_id, **(env or {})},
        start_new_session=True,
    )
    job = Job(process, log_dir, run_id)
    try:
        yield job
    finally:
        if process.poll() is None:
            process.kill()
        for line in job.leftovers():
            with suppress(OSError):
                os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


def wait_for_file_in(folder: Path, name: str, timeout_s: float = STUCK_S) -> str:
    """Wait until a worker has made a file, and return what is in it."""
    path = folder / name
    wait_for(path.exists, f"{name} in {folder}", timeout_s)
    return path.read_text()


def run(tmp_path: Path, *arguments: str, **more: Any) -> tuple[int, Job]:
    """Run a job to its end and check that nothing of it is left."""
    with running(tmp_path, *arguments, **more) as job:
        code = job.finish()
        job.assert_nothing_left()
    return code, job


def kill(*pids: int) -> None:
    """Kill processes, one after the other; the end of one may be that of the next."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def unused_port() -> int:
    """Return a port of this machine that nobody listens on, and that no socket gets by chance before the job does.

    The kernel gives ports from 32768 on to those who ask for none.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", random.randrange(20_000, 32_000)))
            return int(probe.getsockname()[1])


def script(tmp_path: Path, text: str, name: str = "train.py") -> str:
    """Write a training script and return its path."""
    import textwrap

    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return str(path)
