"""Many seeds of many plans on all CPUs: processes that are handed one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from robust_run.errors import PlatformError
from robust_run.planning.results import SeedResult, result
from robust_run.planning.worker import Task, answer

PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from robust_run.planning.worker import main; main(int(sys.argv[1]))"


def run_all(
    tasks: Sequence[Task], processes: int = 0, said: Callable[[float], object] = lambda _: None
) -> list[SeedResult]:
    """Return the results in the order of the tasks. `processes`: 0: one for each CPU. `said` is called with how many are
    done, parts of one included.

    Raises PlatformError: a process ended before its time.
    """
    count = min(processes or _cpus(), len(tasks))
    if count <= 1:
        found: list[SeedResult] = []
        for task in tasks:
            found.append(result(task.plan, task.seed, lambda share: said(len(found) + share)))
            said(len(found))
        return found
    return _Pool(tasks, count, said).run()


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


class _Pool:
    def __init__(self, tasks: Sequence[Task], count: int, said: Callable[[float], object]) -> None:
        self._tasks, self._said = tasks, said
        self._next = 0
        self._shares: dict[int, float] = {}
        self._lock = threading.Lock()
        self._results: dict[int, SeedResult] = {}
        self._workers = [_worker() for _ in range(count)]

    def run(self) -> list[SeedResult]:
        threads = [threading.Thread(target=self._feed, args=(each,), daemon=True) for each in self._workers]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for each in self._workers:
                each.kill()
                each.communicate()
        if len(self._results) < len(self._tasks):
            raise PlatformError("a process that simulated a part of the plan was ended; is there too little memory?")
        return [self._results[number] for number in range(len(self._tasks))]

    def _feed(self, worker: subprocess.Popen[bytes]) -> None:
        """Hand one worker one task after the other, until none is left."""
        assert worker.stdin is not None and worker.stdout is not None
        while True:
            with self._lock:
                number, self._next = self._next, self._next + 1
            if number >= len(self._tasks):
                return
            try:
                worker.stdin.write(msgspec.json.encode(self._tasks[number]) + b"\n")
                worker.stdin.flush()
            except OSError:  # it was ended: said above
                return
            while number not in self._results:
                line = worker.stdout.readline()
                if not line:
                    return
                self._take(number, answer(line))

    def _take(self, number: int, said: SeedResult | float) -> None:
        with self._lock:
            if isinstance(said, float):
                self._shares[number] = said
            else:
                self._results[number] = said
                self._shares.pop(number, None)
            self._said(len(self._results) + sum(self._shares.values()))


def _worker() -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", "-c", PROGRAM, str(os.getpid()), *sys.path]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
