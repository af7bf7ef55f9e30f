"""Runs programs as workers that were forked from a warm process, and as plain `python -u ...`, in the same way.

`serve` is the smallest warm process there can be: it imports modules and forks a worker for every request.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TESTS = Path(__file__).parent
LARGEST_BYTES = 1 << 20
LOOKS = {False: b"-", True: b"+"}
"""First byte of a request: whether the worker looks for garbage at its end, among what was imported before."""
STUCK_S = 300.0
AT_START = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ROBUST_"))}
"""What a test imports may set variables; a warm process that an earlier test started has not seen them."""


class Ended(NamedTuple):
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """Return what programs get, plain and forked."""
    path = os.pathsep.join((str(ROOT), str(TESTS)))
    return {**AT_START, "PYTHONPATH": path, "OMP_NUM_THREADS": "2", **more}


def run_plain(argv: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> Ended:
    """Run `python -u ARGV` as the launcher starts a worker from nothing."""
    process = subprocess.Popen(
        [sys.executable, "-u", *argv],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=STUCK_S)
    finally:
        process.kill()
        process.wait()
    return Ended(process.returncode, out, err)


class Forked:
    """A program that was forked, as Popen shows one that was started. Its standard error goes nowhere."""

    def __init__(self, forker: Forker, argv: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> None:
        self._forker = forker
        out, out_end = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        self.pid = forker.start(argv, cwd, env, nothing, out_end, nothing)
        os.close(out_end)
        os.close(nothing)
        self.stdout = os.fdopen(out)

    def wait(self) -> int:
        """Return its exit code."""
        with self.stdout:
            try:
                return self._forker.wait()
            except TimeoutError:
                os.killpg(self.pid, signal.SIGKILL)
                self._forker.wait()
                raise


class Forker:
    """A warm process, seen from outside. It has one worker at a time."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.pid = process.pid
        self._control = control

    def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        env: Mapping[str, str],
        *descriptors: int,
        looks_for_garbage: bool = False,
        **more: object,
    ) -> int:
        """Fork a worker with these three standard streams and return its pid.

        `looks_for_garbage`: at its end, as a job's workers do (see kept_frozen.py).
        """
        import msgspec

        from robust_run.launcher.agent.warm.identity import Identity

        identity = Identity(argv=argv, env=dict(env), cwd=str(cwd), umask=0o22, agent_pid=os.getpid())
        if more:
            identity = msgspec.structs.replace(identity, **more)
        socket.send_fds(self._control, [LOOKS[looks_for_garbage], msgspec.json.encode(identity)], descriptors)
        return int(self._control.recv(64))

    def wait(self) -> int:
        """Return the exit code of the worker started last."""
        return int(self._control.recv(64))

    def run(self, argv: tuple[str, ...], cwd: Path, env: Mapping[str, str], **more: object) -> Ended:
        """Run `python -u ARGV` as a forked worker."""
        texts: dict[int, bytes] = {}

        def read(descriptor: int) -> None:
            with os.fdopen(descriptor, "rb") as file:
                texts[descriptor] = file.read()

        nothing = os.open(os.devnull, os.O_RDONLY)
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        readers = [threading.Thread(target=read, args=(descriptor,)) for descriptor in (out, err)]
        pid = self.start(argv, cwd, env, nothing, out_end, err_end, **more)
        for descriptor in (nothing, out_end, err_end):
            os.close(descriptor)
        for reader in readers:
            reader.start()
        try:
            code = self.wait()
        except TimeoutError:
            os.killpg(pid, signal.SIGKILL)
            self.wait()
            raise
        finally:
            for reader in readers:
                reader.join()
        return Ended(code, texts[out].decode(), texts[err].decode())


@contextmanager
def warm_process(
    cwd: Path, more_path: str = "", *, modules: tuple[str, ...] = (), with_torch: bool = True
) -> Iterator[Forker]:
    """Start a warm process for the time of a block. `modules`: what it imports besides torch.

    `with_torch`: whether that is imported; without it a worker ends in a fifth of the time.
    """
    from robust_run.launcher.agent.warm.start_up import start_environment

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(STUCK_S)
    env = environment()
    if more_path:
        env["PYTHONPATH"] += os.pathsep + more_path
    if with_torch:
        modules = ("torch.distributed", *modules)
    env.update(start_environment(env, "forks:serve", (str(theirs.fileno()), *modules)))
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "raise AssertionError('the warm process ran its program')"],
        cwd=cwd,
        env=env,
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    try:
        yield Forker(process, ours)
    finally:
        ours.close()
        process.kill()
        process.wait()


def serve(descriptor: str, *modules: str) -> None:
    """Be the warm process: for every identity that arrives, fork, say the worker's pid, and then its exit code."""
    import kept_frozen
    import msgspec

    from robust_run.launcher.agent.warm.become import CannotBecome, become
    from robust_run.launcher.agent.warm.huge_pages import collapse
    from robust_run.launcher.agent.warm.identity import Identity
    from robust_run.launcher.agent.warm.run import run
    from robust_run.own_process import SELDOM

    usual = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    for module in modules:
        __import__(module)
    gc.freeze()  # or each worker looks through it, and copies it as it does
    gc.set_threshold(*usual)
    control = socket.socket(fileno=int(descriptor))
    for _ in collapse():
        pass
    while True:
        data, streams, _, _ = socket.recv_fds(control, LARGEST_BYTES, 3)
        if not data:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            break
        for stream in streams:
            os.close(stream)
        control.send(str(pid).encode())
        control.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    control.close()
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if data[:1] == LOOKS[False]:
        kept_frozen.keep_frozen()
    identity = msgspec.json.decode(data[1:], type=Identity)
    try:
        become(identity)
        run(identity)
    except CannotBecome as error:
        os.write(2, f"{error}\n".encode())
        os._exit(99)
    for name in (__name__, kept_frozen.__name__):
        sys.modules.pop(name, None)
