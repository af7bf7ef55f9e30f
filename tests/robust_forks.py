"""`robust` as a user types it, but forked from a process that has imported it: a start takes a fifth of a CPU second else.

Each command is a process of its own, with the arguments, folder, environment and streams that it was given.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

LARGEST_BYTES = 1 << 20
STUCK_S = 300.0
#: Variables that Python itself reads as it starts.
READ_AT_START = ("PYTHON", "LANG", "LC_")
#: Packages whose modules are imported once for all.
READY = (
    "robust_run.launcher.operator.commands",
    "robust_run.launcher.operator.code",
    "robust_run.launcher.operator.reading",
)


class RobustForks:
    """The process that forks, seen from outside; commands may run beside each other."""

    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self._address = address
        self._at_start = read_at_start(environment)

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether Python would start in the same way with these variables."""
        return read_at_start(env) == self._at_start

    def run(self, words: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run `robust WORDS` to its end."""
        request = json.dumps({"argv": ["-c", *words], "cwd": str(cwd), "env": dict(env)}).encode()
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control,
        ):
            control.settimeout(STUCK_S)
            control.connect(self._address)
            socket.send_fds(control, [request], [out.fileno(), err.fileno()])
            pid = int(control.recv(64))
            try:
                code = int(control.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode().replace("\r\n", "\n"))
        return subprocess.CompletedProcess(["robust", *words], code, *texts)


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Return those of some variables that Python reads as it starts."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


@contextmanager
def robust_forks(folder: Path) -> Iterator[RobustForks]:
    """Start the process that forks, for the time of a block."""
    address = str(folder / "forks")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", f"import robust_forks; robust_forks.serve({listening.fileno()})"],
            env=environment,
            pass_fds=(listening.fileno(),),
            stdin=subprocess.DEVNULL,
        )
    try:
        yield RobustForks(address, os.environ)
    finally:
        process.kill()
        process.wait()


def serve(descriptor: int) -> None:
    """Be the process that forks; returns, and ends, in each process that is a command."""
    from robust_run.robust_cli import main

    for package in READY:
        for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    listening = socket.socket(fileno=descriptor)
    while True:
        control, _ = listening.accept()
        if os.fork() == 0:
            break
        control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listening.close()
    data, streams, _, _ = socket.recv_fds(control, LARGEST_BYTES, 2)
    command = os.fork()
    if command:
        control.send(str(command).encode())
        control.send(str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])).encode())
        os._exit(0)
    control.close()
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    wanted = json.loads(data)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    sys.argv = wanted["argv"]
    main()
