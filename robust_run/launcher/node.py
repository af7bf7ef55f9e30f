"""What an attempt needs of its node: the run directory, the output router, the store, and the means to start processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher import workers
from robust_run.launcher.environment import worker_argv, worker_environment
from robust_run.launcher.output.route import OutputRouter
from robust_run.launcher.run_directory import RunDirectory
from robust_run.launcher.store import Listener, StoreHost, listen, torch_is_installed
from robust_run.launcher.types import JobSpec
from robust_run.tracer.arming import arm_environment
from robust_run.tracer.steps import create as create_steps


class Node:
    """This machine as one job sees it."""

    def __init__(
        self,
        spec: JobSpec,
        env: Mapping[str, str],
        clock: Clock,
        run_directory: RunDirectory,
        router: OutputRouter,
        complain: Callable[[str, OSError], None],
        on_store_lost: Callable[[int, str], None],
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.run_directory = run_directory
        self.router = router
        self.complain = complain
        self._env = env
        self._setup = workers.ChildSetup()
        self._helpers: list[workers.Worker] = []
        self._listener: Listener | None = None
        self._hosts_store = torch_is_installed()
        self._cpus: tuple[frozenset[int], ...] = ()
        if spec.numa_binding:
            from robust_run.launcher.numa import cpus_for_ranks, system_topology

            self._cpus = cpus_for_ranks(spec.numa_binding, spec.nproc, system_topology(env))
        self.store = StoreHost(self._start_helper, _python(), env, on_store_lost)

    def say(self, text: str) -> None:
        """Say a line to the user on stderr."""
        self.router.say(f"robust-run: {text}")

    def open_store(self, attempt: int) -> int:
        """Listen for the workers of an attempt and return the port. Raises PlatformError."""
        spec = self.spec
        self._listener = listen(spec.master_addr, spec.master_port)
        if self._listener.note and attempt == 0:
            self.say(self._listener.note)
        return self._listener.port

    def serve_store(self, attempt: int) -> None:
        """Hand the listening socket to the store's process, after the workers, who need longer than it. Raises PlatformError."""
        if self._listener is None:
            return
        if self._hosts_store:
            self.store.serve(attempt, self._listener)
        else:
            self._listener.socket.close()  # rank 0 will host, on a port that was free a moment ago

    def start_worker(self, attempt: int, rank: int, port: int) -> workers.Worker:
        """Start one rank with its environment, its output and its CPUs. Raises PlatformError."""
        assert self._listener is not None
        self._make_folder(attempt, rank)
        env = worker_environment(
            self.spec,
            self._env,
            local_rank=rank,
            attempt=attempt,
            master_addr=self._listener.address,
            master_port=port,
            agent_hosts_store=self._hosts_store,
            error_file=self.run_directory.error_file(attempt, rank),
            run_dir=self.run_directory.path,
        )
        if self.spec.is_python:
            env.update(arm_environment(env, self.run_directory.steps_file(attempt, rank)))
        cpus = self._cpus[rank] if self._cpus else ()
        output = self.router.open_rank(attempt, rank, rank, self.run_directory.logs_of(attempt, rank))
        try:
            return workers.start(
                worker_argv(self.spec, rank),
                env,
                lambda: self._setup(cpus),
                rank=rank,
                stdout=output.stdout,
                stderr=output.stderr,
            )
        finally:
            output.close()

    def _make_folder(self, attempt: int, rank: int) -> None:
        """Make the rank's folder; without one it runs all the same (a full disk), only its steps are not counted."""
        try:
            os.makedirs(self.run_directory.rank(attempt, rank), exist_ok=True)
            create_steps(self.run_directory.steps_file(attempt, rank))
        except OSError as error:
            self.complain(self.run_directory.rank(attempt, rank), error)

    def _start_helper(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        try:
            log = os.open(self.run_directory.store_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            helper = workers.start(argv, env, self._setup, stdin=nothing, stdout=log, stderr=log, keep=keep)
        finally:
            os.close(log)
            os.close(nothing)
        self._helpers.append(helper)
        return helper.pid

    def helper_pids(self) -> list[int]:
        """Return our own helper processes that outlive an attempt; ended ones are collected on the way."""
        now_s = self.clock.monotonic_s()
        self._helpers = [helper for helper in self._helpers if not helper.poll(now_s)]
        return [helper.pid for helper in self._helpers]

    def end_helpers(self) -> None:
        """End our helper processes and wait for them."""
        import signal
        import time

        self.store.close()
        give_up_at_s = time.monotonic() + 5.0
        for helper in self._helpers:
            helper.signal(signal.SIGKILL, self.clock.monotonic_s())
        while self.helper_pids() and time.monotonic() < give_up_at_s:
            time.sleep(0.001)


def _python() -> str:
    import sys

    if not sys.executable:
        raise PlatformError(
            "this Python does not know its own path (sys.executable is empty), so no store can be started"
        )
    return sys.executable
