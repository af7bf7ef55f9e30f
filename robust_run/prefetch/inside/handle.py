"""The launcher's side: have the place made, start programs in it, hear what goes wrong, let it go.

inside = start(plan, on_problem=say)
Popen(inside.command(["python", "train.py"], "/home/me"), env=inside.environment(os.environ))
inside.close_window()     # the first step is done
inside.stop()             # after the workers have ended
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

import robust_run
from robust_run.decoders import json_decoder
from robust_run.mounts.holding import HolderReady, Problem
from robust_run.prefetch.errors import InsideFailed
from robust_run.prefetch.inside import binds, environment
from robust_run.prefetch.inside.asking import AskedServer
from robust_run.prefetch.inside.types import Bind

_LARGEST_LINE_BYTES = 4 << 20
_ENTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "enter.py")
HOLDER = "robust_run.prefetch.inside.holder"


class HolderPlan(Protocol):
    """What a starter needs to know of a plan; the holder that it is for knows the rest. `InsidePlan` is one."""

    @property
    def image_url(self) -> str:
        """For messages."""
        ...

    @property
    def binds(self) -> tuple[Bind, ...]:
        """What of the host is seen inside."""
        ...

    @property
    def limit_s(self) -> float:
        """How long all of it may take."""
        ...


class Begun:
    """A holder that waits for its plan."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        """Made by `begin`."""
        self.process, self.channel = process, channel

    def close(self) -> None:
        """End it. Not after `start` got it."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


def begin(holder: str = HOLDER) -> Begun:
    """Start a holder before it is known what it is to do, which takes it about 0.1 s; give it to `start`, or close it.

    `holder`: the module that makes places of this kind. Raises `InsideFailed`.
    """
    ours, theirs = socket.socketpair()
    package = os.path.dirname(os.path.dirname(os.path.abspath(robust_run.__file__)))
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", holder],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise InsideFailed(f"the image's holder cannot be started: {error}") from error
    finally:
        theirs.close()
    return Begun(process, ours)


def start(
    plan: HolderPlan,
    *,
    on_problem: Callable[[str], None] = lambda _sentence: None,
    on_note: Callable[[str], None] | None = None,
    holder: str = HOLDER,
    begun: Begun | None = None,
) -> Inside:
    """Make the place that a plan describes, and return once programs can be started in it.

    `on_problem` gets a sentence, from a thread, when something goes wrong later, and `on_note` (None: the same) when something is
    worth knowing that no reader sees. `begun`: see `begin`; `holder` is where there is none.

    Raises `InsideFailed`, with the reason that the holder gave; nothing is left mounted then.
    """
    begun = begun or begin(holder)
    descriptors: list[int] = []
    early: list[Problem] = []
    try:
        ready = _wait_ready(begun.channel, plan, descriptors, early)
        if ready.failed:
            raise InsideFailed(ready.failed)
    except BaseException:
        begun.close()
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    libraries = binds.FOLDER if any(bind.destination.startswith(f"{binds.FOLDER}/") for bind in plan.binds) else ""
    hear = _hearing(on_problem, on_note or on_problem)
    for problem in early:
        hear(problem)
    return Inside(begun.process, begun.channel, ready, descriptors, hear, libraries)


def _hearing(on_problem: Callable[[str], None], on_note: Callable[[str], None]) -> Callable[[Problem], None]:
    return lambda problem: (on_note if problem.is_note else on_problem)(problem.sentence)


def _wait_ready(channel: socket.socket, plan: HolderPlan, descriptors: list[int], early: list[Problem]) -> HolderReady:
    """`early` gets the problems that came before."""
    deadline_s = time.monotonic() + plan.limit_s

    def left_s() -> float:
        left = deadline_s - time.monotonic()
        if left <= 0:
            raise InsideFailed(f"{plan.image_url}: it could not be made ready within {plan.limit_s:g} s")
        return left

    try:
        channel.settimeout(left_s())
        channel.sendall(msgspec.json.encode(plan) + b"\n")
        while True:
            channel.settimeout(left_s())
            mark, received, _flags, _address = socket.recv_fds(channel, 1, 2, socket.MSG_CMSG_CLOEXEC)
            descriptors.extend(received)
            line = _line(channel, plan, left_s)
            if mark in (b"+", b"-"):
                return json_decoder(HolderReady).decode(line)
            early.append(json_decoder(Problem).decode(mark + line))
    except TimeoutError as error:
        raise InsideFailed(f"{plan.image_url}: it could not be made ready within {plan.limit_s:g} s") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise InsideFailed(f"{plan.image_url}: the image's holder ended without a word: {error}") from error


def _line(channel: socket.socket, plan: HolderPlan, left_s: Callable[[], float]) -> bytes:
    """Read to the end of a line, and nothing of what follows: that is for the listener."""
    line = b""
    while not line.endswith(b"\n"):
        channel.settimeout(left_s())
        piece = channel.recv(1)
        line += piece
        if not piece or len(line) > _LARGEST_LINE_BYTES:
            raise InsideFailed(f"{plan.image_url}: the image's holder ended without a word")
    return line


def entering(namespaces: Sequence[int], argv: Sequence[str], working_directory: str) -> list[str]:
    """Return the argv that runs a program in namespaces of which this process has descriptors; see `Inside.command`."""
    mount, *user = (f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in namespaces)
    return [sys.executable, "-I", "-S", _ENTER, mount, user[0] if user else "-", working_directory, *argv]


class Inside(AskedServer):
    """A place for programs, and its image's block server. Safe to use from threads."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: socket.socket,
        ready: HolderReady,
        descriptors: Sequence[int],
        hear: Callable[[Problem], None],
        libraries: str,
    ) -> None:
        """Made by `start`."""
        super().__init__(ready.control_path, lambda: self.reason)
        self._libraries = libraries
        self._process, self._channel, self._descriptors = process, channel, list(descriptors)
        self._hear = hear
        self._stopping = threading.Event()
        self.ready = ready
        """The rung and why, the image's interpreter, the block server's socket."""
        self.reason = ""
        """Why the place is lost; "" while it is not."""
        self.has_lost_reads = False
        """Whether reads failed in it: its mount may remember them, and fail them again though their bytes can be had."""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Of the holder."""
        return self._process.pid

    @property
    def python(self) -> str:
        """The image's interpreter; "" where it has none."""
        # That of a virtual environment is a link to one of this machine, which is not found by looking at the image alone.
        return self.ready.python or (os.path.join(self.ready.mount_at, "bin", "python") if self.ready.mount_at else "")

    @property
    def laid(self) -> AskedServer | None:
        """The block server of what is laid over the image; None: there is none."""
        path = self.ready.laid_control_path
        return AskedServer(path, lambda: self.reason) if path else None

    @property
    def in_user_namespace(self) -> bool:
        """Whether it is seen in a user namespace of ours."""
        return self.ready.in_user_namespace

    def command(self, argv: Sequence[str], working_directory: str) -> list[str]:
        """Return the argv that runs a program inside; `argv[0]` is looked for there, on the PATH of the environment given to it.

        It keeps its pid, and all that its parent arranged for it. Valid for children of this process, until `stop`.
        """
        return entering(self._descriptors, argv, working_directory)

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of its namespaces: of the mount namespace, then of the user namespace if there is one."""
        return tuple(self._descriptors)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what a program inside starts with instead of `env`. An environment image changes only PATH."""
        if not self.ready.mount_at:
            return environment.merged(env, self.ready.env, self._libraries)
        programs = os.path.join(self.ready.mount_at, "bin")
        return {**env, "PATH": f"{programs}:{env['PATH']}" if env.get("PATH") else programs}

    def wait_anew(self, limit_s: float = 1.0) -> None:
        """Have its block servers wait for sources as long as at first: another attempt begins. Never raises."""
        super().wait_anew(limit_s)
        if (laid := self.laid) is not None:
            laid.wait_anew(limit_s)

    def stop(self, limit_s: float = 10.0) -> None:
        """Let the place go: it ends with the last program in it. Never raises; call it after the workers have ended."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(limit_s)
        self._channel.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _listen(self) -> None:
        """Pass on what the holder says, and notice its end."""
        self._channel.settimeout(None)
        rest = b""
        while True:
            try:
                select.select([self._channel], [], [])
                data = self._channel.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(msgspec.MsgspecError):
                    self._happened(json_decoder(Problem).decode(line))
            rest = rest[-_LARGEST_LINE_BYTES:]
        if not self._stopping.is_set():
            ended = "the process that kept the image has ended: what reads the image from now on gets errors"
            self._happened(Problem(ended, is_lost=True))

    def _happened(self, problem: Problem) -> None:
        if problem.is_lost:
            self.reason = problem.sentence
        self.has_lost_reads = self.has_lost_reads or problem.has_lost_reads
        self._hear(problem)
