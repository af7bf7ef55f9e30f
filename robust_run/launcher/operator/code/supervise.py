"""Supervisor of one command for `check`: ends all that it has started, in any session. A program of its own.

It is a subreaper, so what the command leaves behind becomes its child: no daemon of a check outlives the check. It reads what
the command prints, without end if need be, and keeps the last of it.

    python -I -c PROGRAM <folder of robust_run> <limit in seconds> <command>...      prints {"code": 0 or null, "said": "..."}

Python's standard library and `process_tree` only: it starts within the time that people wait for `robust update`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

from robust_run.launcher.agent.workers.process_tree import PR_SET_PDEATHSIG, Killing, Sweep, become_subreaper, prctl

#: Of what the command prints, the end is kept.
TAIL_BYTES = 8192
#: Between looks at whether the command has ended, and at what is left of it.
LOOK_S = 0.02

PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from robust_run.launcher.operator.code.supervise import main; main()"


class CommandTail:
    """The end of what comes through a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.data = b""
        self._descriptor = descriptor
        self._is_open = True
        os.set_blocking(descriptor, False)

    def wait(self, timeout_s: float) -> bool:
        """Take in what has come, or wait so long for it; return whether anything has."""
        if not self._is_open:
            time.sleep(timeout_s)
            return False
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return False
        piece = os.read(self._descriptor, 1 << 16)
        self._is_open = bool(piece)
        self.data = (self.data + piece)[-TAIL_BYTES:]
        return self._is_open


def run(argv: list[str], limit_s: float) -> tuple[int | None, bytes]:
    """Return the exit code of a command, None where it took too long, and what it printed last. Nothing of it is left."""
    reader, writer = os.pipe()
    until_s = time.monotonic() + limit_s
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, start_new_session=True)
    finally:
        os.close(writer)
    tail = CommandTail(reader)
    try:
        while process.poll() is None and time.monotonic() < until_s:
            tail.wait(LOOK_S)
        code = process.poll()
    finally:
        end_all()
    for _ in range(TAIL_BYTES):  # a pipe holds no more than that
        if not tail.wait(0.0):
            break
    return code, tail.data


def end_all() -> None:
    """Kill everything below this process."""
    killing = Killing(Sweep(os.getpid(), lambda: (), lambda: ()), time.monotonic())
    while killing.round(time.monotonic())[1]:
        time.sleep(LOOK_S)


def main() -> None:
    """Run the command of the command line and print what became of it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    become_subreaper()
    try:
        code, said = run(sys.argv[2:], float(sys.argv[1]))
    except OSError as error:
        json.dump({"code": None, "said": "", "error": error.strerror or str(error)}, sys.stdout)
        return
    json.dump({"code": code, "said": said.decode(errors="replace")}, sys.stdout)
