"""Supervisor of the controller's process on the node that hosts it; makes a candidate's ready when its turn may come."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterable

import msgspec

from robust_run.errors import PlatformError
from robust_run.installation import OURS
from robust_run.launcher.agent.workers import workers
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.own_process import boot
from robust_run.signals import describe_exit

#: Exit code of a controller that another one has replaced: it is started again as a candidate.
REPLACED = 75

_BOOT = boot("robust_run.launcher.start.controller_process", "main(int(sys.argv[1]))")

#: A controller that lived this long was well; one that did not is started again more slowly each time.
WELL_S = 2.0
SLOWEST_S = 5.0
#: Deaths in a row, each soon after the start, of which is told.
MOST_TOLD = 8
#: How long the controller may take to speak its last word.
LAST_WORD_S = 15.0
#: One that is younger than this may be slow to answer: the machine is busy;
YOUNG_S = 10.0
#: and it reads the journal first, at least so fast.
READS_BYTES_PER_S = 4 << 20


def config_of(
    spec: JobSpec, token: str, run_directory: RunDirectory, host_agent: str, guard: int, *, resume: bool
) -> ControllerConfig:
    """Return what a controller on this node is given, but for where it listens."""
    many = spec.many
    return ControllerConfig(
        spec=spec,
        token=token,
        run_path=run_directory.path,
        run_memory=run_directory.memory,
        listener=-1,
        address="",
        host_agent=host_agent,
        host=socket.gethostname(),
        guard=guard,
        resume=resume,
        campaigns=many is not None and many.controller_standby > 0,
        temporary=run_directory.temporary,
    )


class ControllerSupervisor:
    """The controller's process of this node, if it has one. A child of this process, which dies with it."""

    def __init__(self, mask: Iterable[int], env: dict[str, str], say: Callable[[str], None]) -> None:
        self.on_ended: Callable[[int], None] = lambda _: None
        """Called with its exit code when it is not started again: the job is over, or it is left to a person."""
        self._setup = workers.ChildSetup(mask)
        self._env = env
        self._say = say
        self._worker: workers.Worker | None = None
        self._config: ControllerConfig | None = None
        self._where: _Where | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started_at_s = 0.0
        self._deaths = 0
        self._ended: asyncio.Event | None = None
        self._closing = False

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._worker is not None and self._worker.exit_code is None

    @property
    def address(self) -> str:
        """HOST:PORT where the agent of this node reaches it; empty: there is none."""
        return self._config.address if self._config is not None else ""

    def pids(self) -> list[int]:
        """Return what must be spared when an attempt's processes are ended."""
        return [self._worker.pid] if self._worker is not None and self._worker.exit_code is None else []

    def start(self, config: ControllerConfig, listener: socket.socket) -> None:
        """Start the process; it has the socket from now on. Raises PlatformError."""
        self._config = config
        self._where = _Where(listener)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._launch(listener)

    def _launch(self, listener: socket.socket) -> None:
        assert self._config is not None and self._loop is not None
        memory = os.memfd_create("robust-run-controller", os.MFD_CLOEXEC)
        try:
            config = msgspec.structs.replace(self._config, listener=listener.fileno())
            os.write(memory, msgspec.json.encode(config))
            argv = (sys.executable, "-c", _BOOT, str(memory))
            self._worker = workers.start(
                argv, self._env, self._setup, stdin=_nothing(), keep=(memory, listener.fileno())
            )
        finally:
            os.close(memory)
            listener.close()  # where no process holds it, dialing is refused, which tells agents that nobody controls
        self._started_at_s = self._loop.time()
        descriptor = self._worker.watch()
        if descriptor >= 0:
            self._loop.add_reader(descriptor, self._look)
        else:
            self._poll()

    def _poll(self) -> None:
        """Look now and then: for kernels without pidfd_open."""
        self._look()
        if self.is_running and self._loop is not None:
            self._loop.call_later(0.1, self._poll)

    def _look(self) -> None:
        worker = self._worker
        assert worker is not None and self._loop is not None and self._ended is not None
        if not worker.poll(self._loop.time()):
            return
        if worker.pidfd >= 0:
            self._loop.remove_reader(worker.pidfd)
        worker.close()
        change = OURS.change()
        could_not_begin = worker.exit_code == 1 and bool(change)  # as Python ends that finds nothing to run
        if self._closing or (worker.exit_code in (0, 1, 2) and not could_not_begin):
            self._ended.set()
            self.on_ended(worker.exit_code or 0)  # it has said why
            return
        self._deaths = 0 if self._loop.time() - self._started_at_s > WELL_S else self._deaths + 1
        delay_s = min(SLOWEST_S, 0.02 * 2**self._deaths) if self._deaths > 1 else 0.0
        how = f"cannot be started ({change})" if could_not_begin else describe_exit(worker.exit_code)
        if worker.exit_code != REPLACED and self._deaths < MOST_TOLD:
            self._say(f"the controller {how}; it is started again, workers are not touched")
        elif self._deaths == MOST_TOLD:
            often = f"{how} {MOST_TOLD} times in a row"
            self._say(f"the controller {often}; it is started again every {SLOWEST_S:g} s")
        self._loop.call_later(delay_s, self._again)

    def _again(self) -> None:
        assert self._config is not None and self._loop is not None and self._ended is not None
        assert self._where is not None
        if self._closing:
            self._ended.set()
            return
        try:
            listener = self._where.bind_again()
        except OSError as error:
            self._say(f"cannot have {self._config.address} again for the controller: {error.strerror}; trying on")
            self._loop.call_later(1.0, self._again)
            return
        self._config = msgspec.structs.replace(self._config, resume=True)
        try:
            self._launch(listener)
        except PlatformError as error:
            self._say(str(error))
            self._loop.call_later(1.0, self._again)

    def end_stuck(self, silent_s: float, limit_s: float) -> None:
        """End a controller that has not answered for so long, so that it is started anew. A young one gets more time."""
        if self._loop is None or not self.is_running or self._worker is None or self._closing:
            return
        if silent_s >= limit_s and max(self._loop.time() - self._started_at_s, silent_s) >= self._young_s():
            self._say(f"the controller has not answered for {silent_s:.1f} s: it is ended")
            self._worker.signal(9, self._loop.time())

    def _young_s(self) -> float:
        """Return until what age it may be slow to answer."""
        try:
            journal_bytes = os.path.getsize(os.path.join(self._config.run_path, "journal.jsonl")) if self._config else 0
        except OSError:
            journal_bytes = 0
        return YOUNG_S + journal_bytes / READS_BYTES_PER_S

    async def close(self, *, wait: bool) -> None:
        """Let the controller finish what it says, or end it."""
        self._closing = True
        if self._ended is None or self._worker is None:
            return
        if not wait:
            self._worker.signal(9, 0.0)
        try:
            await asyncio.wait_for(self._ended.wait(), LAST_WORD_S)
        except asyncio.TimeoutError:
            self._worker.signal(9, 0.0)


class _Where:
    """What a listening socket was bound to, all interfaces or one, to bind another one there."""

    def __init__(self, listener: socket.socket) -> None:
        self._family = listener.family
        self._name = listener.getsockname()
        self._only_v6 = self._family == socket.AF_INET6 and bool(
            listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        )

    def bind_again(self) -> socket.socket:
        """Return a socket that is bound there and does not listen. Raises OSError."""
        bound = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, self._only_v6)
            bound.bind(self._name)
        except OSError:
            bound.close()
            raise
        return bound


def bind(address: str, port: int) -> socket.socket:
    """Return a socket bound to an address and not listening. Raises OSError."""
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError:
        bound.close()
        raise
    return bound


def _nothing() -> int:
    import subprocess

    return subprocess.DEVNULL
