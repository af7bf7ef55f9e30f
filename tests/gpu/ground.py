"""Ranks of `program.py` as processes, traced or not: a few of them on one GPU, which NCCL takes for as many machines.

NCCL refuses two ranks on one GPU of one machine. What it knows a machine by is NCCL_HOSTID; with another one for each rank they
pass, and since they then share neither shared memory nor a PCI bus, all they say goes over sockets, which is what the plugin is
to see. NVIDIA does not support this: two kernels that wait for each other share the GPU by time slices. It is slow, and may hang.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from robust_run.tracer.files import phases
from robust_run.tracer.files.arming import arm_environment, create_files
from robust_run.tracer.files.steps import create
from robust_run.tracer.nccl.types import NcclSight, NcclTrace
from robust_run.tracer.plugin import layout, reader
from robust_run.tracer.types import StepPhases

PROGRAM = Path(__file__).with_name("program.py")
#: What NCCL must be told so that ranks on one GPU talk over sockets.
APART = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}
#: What a wait takes at most: the first step includes the start of CUDA.
PATIENCE_S = 120.0
LOOK_S = 0.02
#: Between the two readings of a rank's trace.
BETWEEN_S = 1.0


class TooLongError(AssertionError):
    """Something did not happen in time."""


def until(happened: Callable[[], bool], what: Callable[[], str], limit_s: float = PATIENCE_S) -> None:
    """Wait for something. Raises TooLongError."""
    end_s = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > end_s:
            raise TooLongError(f"not within {limit_s:g} s: {what()}")
        time.sleep(LOOK_S)


class Ranks:
    """Running ranks. Use as a context manager: nothing of them is left afterwards."""

    def __init__(
        self,
        folder: Path,
        backend: str,
        *,
        count: int = 2,
        steps: int = 1_000_000,
        fault: Sequence[str] = (),
        plugin: str = "",
        environment: Mapping[str, str] | None = None,
        armed: bool = False,
    ) -> None:
        """`plugin` empty: NCCL is not traced. `armed`: ranks count and time their steps, as under robust-run.

        `fault`: arguments of the program after the number of steps.
        """
        self.folder = folder
        self.count = count
        folder.mkdir(parents=True, exist_ok=True)
        base = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "ROBUST_", "TORCH_"))}
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(count):
                own = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(count),
                    "BACKEND": backend,
                    "STORE": str(folder / "store"),
                    "OMP_NUM_THREADS": "1",
                    **(APART | {"NCCL_HOSTID": f"machine-{rank}"} if backend == "nccl" else {}),
                    **(environment or {}),
                }
                if plugin:
                    layout.create(self.trace_path(rank))
                    own |= {"NCCL_PROFILER_PLUGIN": plugin, layout.PATH_VARIABLE: self.trace_path(rank)}
                if armed:
                    steps_file = str(self._path(rank, "steps"))
                    create(steps_file)
                    create_files(steps_file, rank, count, times_phases=True)
                    own |= arm_environment(base | own, steps_file)
                self._start(rank, [str(steps), *fault], base | own)
        except BaseException:
            self.end()
            raise

    def _start(self, rank: int, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        with self._path(rank, "out").open("wb") as out, self._path(rank, "err").open("wb") as err:
            self._started.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=dict(environment),
                    start_new_session=True,
                )
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _path(self, rank: int, kind: str) -> Path:
        return self.folder / f"{rank}.{kind}"

    def trace_path(self, rank: int) -> str:
        return str(self._path(rank, "nccl"))

    def pid(self, rank: int) -> int:
        return self._started[rank].pid

    # --- what they say ---

    def step_times(self, rank: int) -> list[float]:
        """Seconds of each step so far."""
        lines = self._path(rank, "out").read_text().splitlines()
        return [float(line.split()[2]) for line in lines if line.startswith("step ") and len(line.split()) == 3]

    def steps(self) -> list[int]:
        return [len(self.step_times(rank)) for rank in range(self.count)]

    def digest(self, rank: int) -> str:
        """What came of the training; empty before its end."""
        lines = self._path(rank, "out").read_text().splitlines()
        return lines[-1].removeprefix("done ") if lines and lines[-1].startswith("done ") else ""

    def last_words(self) -> str:
        """Where they are, and what went wrong, for a message."""
        errors = [self._path(rank, "err").read_text(errors="replace").strip() for rank in range(self.count)]
        lines = [error.splitlines()[-1][:300] for error in errors if error]
        return f"steps {self.steps()}; {'; '.join(lines) or 'nothing on stderr'}"

    def until_steps(self, number: int, limit_s: float = PATIENCE_S) -> None:
        """Wait until all have made so many steps. Raises TooLongError, also where one has died."""

        def there() -> bool:
            if min(self.steps()) >= number:
                return True
            if any(started.poll() not in (None, 0) for started in self._started):
                raise TooLongError(f"a rank has died: {self.last_words()}")
            return False

        until(there, self.last_words, limit_s)

    def until_done(self, limit_s: float = PATIENCE_S) -> list[str]:
        """Wait for the end of all; return what came of it."""
        until(lambda: all(started.poll() is not None for started in self._started), self.last_words, limit_s)
        return [self.digest(rank) for rank in range(self.count)]

    def phases(self, rank: int) -> tuple[StepPhases, ...]:
        """What its steps consisted of."""
        return phases.read(str(self._path(rank, "steps.phases")))

    # --- what is done to them ---

    def stop(self, rank: int) -> None:
        os.kill(self.pid(rank), signal.SIGSTOP)

    def until_stuck(self, limit_s: float = PATIENCE_S) -> None:
        """Wait until no rank has made a step for a while."""
        seen, since_s = self.steps(), time.monotonic()

        def stuck() -> bool:
            nonlocal seen, since_s
            now = self.steps()
            if now != seen:
                seen, since_s = now, time.monotonic()
            return time.monotonic() - since_s >= 2 * BETWEEN_S

        until(stuck, self.last_words, limit_s)

    def starve(self, rank: int, cpu: int) -> list[subprocess.Popen[bytes]]:
        """Give all threads of a rank one CPU, at the lowest priority, with two programs that keep it busy; return those."""
        for thread in os.listdir(f"/proc/{self.pid(rank)}/task"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), {cpu})
                os.setpriority(os.PRIO_PROCESS, int(thread), 19)
        burn = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        return [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]

    # --- what is seen of them ---

    def trace(self, rank: int) -> NcclTrace | None:
        return reader.read(self.trace_path(rank))

    def sights(self) -> list[NcclSight]:
        """What an agent sees: two readings of each rank, a moment apart."""
        before = [self.trace(rank) for rank in range(self.count)]
        time.sleep(BETWEEN_S)  # what is looked at is whether anything moves meanwhile
        return [
            NcclSight(
                rank=rank,
                node=f"machine-{rank}",
                trace=self.trace(rank),
                before=before[rank],
                alive=self._started[rank].poll() is None,
            )
            for rank in range(self.count)
        ]

    def end(self) -> None:
        """End what is left."""
        for started in self._started:
            if started.poll() is None:
                started.kill()
        for started in self._started:
            started.wait(PATIENCE_S)
