"""Jobs of several roles that are struck while they run: what the demos of such jobs share."""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable


class DemoError(Exception):
    """Something that a demo shows did not happen. The message says what."""


def say(line: str) -> None:
    """Tell the reader what happens."""
    print(f"-- demo: {line}", flush=True)


def newest_pid(folder: str, member: str) -> int | None:
    """Return the worker of a member that was started last, as its journal says; None: none yet."""
    found = None
    members = os.path.join(folder, "members")
    for journal in sorted(glob.glob(f"{glob.escape(members)}/{member}.*/journal.jsonl"), key=_start):
        with open(journal, encoding="utf-8") as file:
            for line in file:
                event = json.loads(line).get("event", {}) if line.endswith("\n") else {}
                if event.get("type") == "attempt_started":
                    found = int(event["pids"][0])
    return found


def _start(journal: str) -> int:
    return int(os.path.dirname(journal).rpartition(".")[2])


def kill(pid: int, program: str) -> bool:
    """Kill a worker that runs a program; False: it has ended, and its number may be another's by now."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            is_worker = program.encode() in file.read()
        if is_worker:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        return is_worker
    except (FileNotFoundError, ProcessLookupError):
        return False
    finally:
        os.close(handle)


def run_job(
    command: list[str],
    folder: str,
    shown: re.Pattern[str],
    limit_s: float,
    strike: Callable[[threading.Event], None] | None = None,
    hear: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a job to its end, and print what `shown` finds in its lines; all of them go to `hear`.

    `strike` runs beside it, and is told when the job is over. `folder`: where its logs are. Raises DemoError if it fails.
    """
    say("$ robust-run " + " ".join(os.path.relpath(each) if os.path.isabs(each) else each for each in command[1:]))
    over = threading.Event()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as job:
        limit = threading.Timer(limit_s, job.terminate)
        limit.daemon = True
        limit.start()
        if strike is not None:
            threading.Thread(target=strike, args=(over,), daemon=True).start()
        try:
            assert job.stdout is not None
            for line in job.stdout:
                hear(line)
                if shown.search(line):
                    print("   |", line.rstrip(), flush=True)
        except BaseException:
            job.terminate()
            raise
        finally:
            limit.cancel()
            over.set()
    if job.returncode != 0:
        raise DemoError(f"the job ended with exit code {job.returncode}; its logs are in {folder}")
