"""Shutdown of an attempt on a node: workers are asked and given their time, so is what they leave behind, and then all
are killed until nothing is left.

Imported after the first workers have been started.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from robust_run.launcher.agent.workers.process_tree import Killing, ProcessStatus, Sweep
from robust_run.launcher.agent.workers.workers import Worker
from robust_run.launcher.model.actions import EndAttempt

if TYPE_CHECKING:
    from robust_run.launcher.agent.node import Node


class Ending:
    """One attempt's."""

    def __init__(self, workers: Sequence[Worker], node: Node) -> None:
        self.workers_gone = asyncio.Event()
        """To be set when every worker has been seen to end."""
        self._workers = workers
        self._node = node
        self._hurry = asyncio.Event()
        self._grace_until_s = float("-inf")
        self._leftovers_s = 0.0

    def heed(self, order: EndAttempt) -> None:
        """Take in an order, the first or a further one: the longest grace of all counts, and one without any ends all at once."""
        self._grace_until_s = max(self._grace_until_s, time.monotonic() + order.grace_s)
        self._leftovers_s = max(self._leftovers_s, order.leftovers_s)
        if order.grace_s <= 0 and order.leftovers_s <= 0:
            self._hurry.set()
            self.workers_gone.set()

    def sweep(self) -> Sweep:
        """Return what sees all processes of the attempt."""
        return Sweep(os.getpid(), spare=self._node.helper_pids, owned=lambda: [worker.pid for worker in self._workers])

    async def run(self, order: EndAttempt) -> None:
        """End every process, and say which could not be ended."""
        await self._ask_workers(order)
        sweep = self.sweep()
        await self._terminate(sweep)
        for status in await self._kill(sweep):
            name = f"process {status.pid} ({status.name}, state {status.state})"
            self._node.say(f"{name} could not be ended; {what_holds(status.pid)}")

    async def _ask_workers(self, order: EndAttempt) -> None:
        """Send the workers the order's signal and give them the longest grace of any order to act on it."""
        if not order.signal or self._hurry.is_set() or all(worker.exit_code is not None for worker in self._workers):
            return
        now_s = self._node.clock.monotonic_s()
        for worker in self._workers:
            worker.signal(order.signal, now_s)
        while not self.workers_gone.is_set() and (left_s := self._grace_until_s - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self.workers_gone.wait(), left_s)
            except asyncio.TimeoutError:
                continue  # unless an order since then gave more, the time is over
        if not self.workers_gone.is_set():
            self._say_who_stayed(order)
            self._hurry.set()

    def _say_who_stayed(self, order: EndAttempt) -> None:
        """Say once in a job that survivors of a failure made its relaunch wait for all of their grace."""
        stayed = sorted(worker.rank for worker in self._workers if worker.exit_code is None)
        if order.leftovers_s > 0 or not stayed or self._node.has_told_of_grace:
            return  # somebody stopped the job: then nobody waits for a relaunch
        from robust_run.tracer.words import ranks_words

        self._node.has_told_of_grace = True
        self._node.say(
            f"{ranks_words(stayed)} did not end within {order.grace_s:g} s of SIGTERM, so SIGKILL follows. Inside a collective "
            "no handler runs: if yours saves nothing, a shorter --restart-grace relaunches sooner"
        )

    async def _terminate(self, sweep: Sweep) -> None:
        """Ask what workers left behind to end, and wait as long as it is given."""
        leftovers_s = self._leftovers_s
        if self._hurry.is_set() or leftovers_s <= 0:
            return
        give_up_at_s = time.monotonic() + leftovers_s
        left = sweep.ask()
        while left and not self._hurry.is_set() and time.monotonic() < give_up_at_s:
            await asyncio.sleep(0.005)
            left = sweep.left()
        if left and not self._hurry.is_set():
            names = ", ".join(f"{status.name} (pid {status.pid})" for status in left[:5])
            self._node.say(f"ending what workers left behind and {leftovers_s:g} s did not end: {names}")

    async def _kill(self, sweep: Sweep) -> list[ProcessStatus]:
        """Kill until nothing is left; return what would not go."""
        now_s = self._node.clock.monotonic_s()
        for worker in self._workers:
            if worker.exit_code is None and worker.signalled_at_s is None and not worker.poll(now_s):
                worker.signalled_at_s = now_s
        killing = Killing(sweep, time.monotonic())
        left, more = killing.round(time.monotonic())
        while more:
            await asyncio.sleep(0.001)
            left, more = killing.round(time.monotonic())
        for worker in self._workers:
            worker.poll(self._node.clock.monotonic_s())
        return left


def what_holds(pid: int, root: str = "/proc", mounts: str = "/sys/fs/cgroup") -> str:
    """Say what may keep a process from dying of SIGKILL: a cgroup of version 1 that is frozen does."""
    from robust_run.tracer.sight.freezer import frozen_by
    from robust_run.tracer.verdict.frozen import thaw_command

    file = frozen_by(pid, root, mounts)
    return f"its cgroup keeps it frozen, to thaw it: {thaw_command(file)}" if file else "it may hold a device"


def report_failure(task: asyncio.Task[None]) -> None:
    """Hand an exception of the task to the loop's handler now, not when the task is collected."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        task.get_loop().call_exception_handler(
            {"message": "ending an attempt failed", "exception": error, "task": task}
        )
