"""One robust-run job on a test's Slurm (slurm_cluster.py): submitted as people do it, followed by its journal and its steps.

job = submit(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, sbatch=["-N4"])
job.wait_for_steps(attempt=0, ranks=3)
slurm["node-2"].power_off()
job.wait_for_steps(attempt=1, ranks=3)
job.end("COMPLETED")
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusters import ClusterJob, Worker
from host_process import HostProcess
from jobs import wait_for
from slurm_cluster import SlurmCluster

#: A wait that takes longer than this is stuck. Slurm itself takes up to half a minute to notice things.
PATIENCE_S = 300.0
#: A busy machine stands still for seconds now and then: nodes are not lost by that.
LEASE = ("--rdzv-conf", "keep_alive_max_attempt=6")
ROBUST = [sys.executable, "-c", "from robust_run.robust_cli import main; main()"]
ROBUST_RUN = [sys.executable, "-m", "robust_run"]


@dataclass(kw_only=True)
class SlurmJob(ClusterJob):
    """A job of Slurm whose one step is a job of robust-run."""

    slurm: SlurmCluster
    number: int = 0
    """Of the job, as Slurm counts."""
    log: Path = Path()
    """Where its output goes."""
    step: HostProcess | None = None
    """The srun, if it was started without a batch script."""

    def said(self) -> str:
        """Return all output so far."""
        parts = [self.log.read_text(errors="replace")] if self.log.is_file() else []
        if self.step is not None:
            parts += [self.step.out, self.step.err]
        return "\n".join(parts)

    def wait_said(self, words: str, times: int = 1) -> str:
        """Wait until something has been said so often; return all that was."""
        wait_for(lambda: self.said().count(words) >= times, f"{words!r} in:\n{self.said()}", PATIENCE_S)
        return self.said()

    def wait_for_steps(self, attempt: int, ranks: int, count: int = 3, timeout_s: float = PATIENCE_S) -> list[Worker]:
        """Wait as any job does, with more patience: Slurm starts a job again only when it has noticed what happened."""
        return super().wait_for_steps(attempt, ranks, count, timeout_s)

    def wait_for_steps_from_now(self, ranks: int, without: str, count: int = 20) -> None:
        """Wait until so many ranks of one attempt, none of them on that host, have made so many steps from now on."""
        now_s = time.monotonic()

        def stepped() -> bool:
            steps = [(w.attempt, sum(at_s > now_s for at_s in w.times)) for w in self.workers() if w.host != without]
            going = [attempt for attempt, made in steps if made >= count]
            return any(going.count(attempt) >= ranks for attempt in going)

        wait_for(stepped, f"{ranks} ranks to step:\n{self.said()}", PATIENCE_S)

    def wait_for_candidates(self) -> None:
        """Wait until the job would outlive the node of its controller."""
        wait_for(
            lambda: len(self.controllers()) >= 2,
            f"a candidate beside the controller:\n{self.said()}",
            PATIENCE_S,
        )

    def controllers(self) -> list[str]:
        """Return the nodes that have a controller, or stand ready to have it."""
        return self.slurm.running("robust_run.launcher.start.controller_process")

    def hosts_of(self, attempt: int) -> list[str]:
        """Return the hosts whose workers have stepped in an attempt, sorted."""
        return sorted({worker.host for worker in self.workers() if worker.attempt == attempt and worker.times})

    def end(self, *states: str, timeout_s: float = PATIENCE_S) -> str:
        """Tell the workers that they are done; wait for Slurm to say that the job is in one of these states; return it."""
        (self.steps_dir / "done").touch()
        return self.ended(*states, timeout_s=timeout_s)

    def ended(self, *states: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait until Slurm says that the job has ended so."""
        try:
            return self.slurm.wait_state(self.number, *states, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.slurm.job(self.number)}\n{self.said()}") from None

    def assert_nothing_left(self, hosts: Any = None, timeout_s: float = 60.0) -> None:
        """Fail if anything but Slurm's daemons lives on a node that is on, or if a folder in memory outlives the job."""
        for host in self.slurm.nodes if hosts is None else hosts:
            if host._init is not None:
                wait_for(
                    lambda host=host: not self.slurm.left_on(host),
                    f"{host.name} to be empty: {self.slurm.left_on(host)}",
                    timeout_s,
                )  # type: ignore[misc]
                assert list((host.root / "dev/shm").glob("robust-run-*")) == []


def _job(slurm: SlurmCluster, tmp_path: Path, env: Mapping[str, str] | None, python: str) -> SlurmJob:
    steps_dir = tmp_path / f"steps-{uuid.uuid4().hex[:8]}"
    steps_dir.mkdir()
    variables = {
        "TEST_STEPS": str(steps_dir),
        "ROBUST_SHARED_RUNS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        **(env or {}),
    }
    return SlurmJob(
        hosts=slurm.nodes,
        argv=(),
        run_id="",
        log_dir=tmp_path / "robust-runs",
        steps_dir=steps_dir,
        env=variables,
        python=python,
        slurm=slurm,
    )


def submit(
    slurm: SlurmCluster,
    *script: str,
    tmp_path: Path,
    sbatch: Sequence[str] = (),
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> SlurmJob:
    """Submit `robust-run OPTIONS SCRIPT...` with `robust slurm submit`."""
    job = _job(slurm, tmp_path, env, python)
    command = [python, "-m", "robust_run", "--no-warm", *LEASE, *options, *script]
    said = slurm.run(*ROBUST, "slurm", "submit", *sbatch, "--", *command, env=job.env, cwd=tmp_path)
    job.number = int(said.split()[2])
    job.run_id = f"slurm-{job.number}.0"
    job.log = job.log_dir / f"slurm-{job.number}.out"
    return job


def srun(
    slurm: SlurmCluster,
    *script: str,
    tmp_path: Path,
    srun: Sequence[str] = (),
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> SlurmJob:
    """Start `srun robust-run OPTIONS SCRIPT...` on the login node, with what a step needs to outlive its nodes."""
    job = _job(slurm, tmp_path, env, python)
    step = ["srun", "-K0", "-W0", "--no-kill", "--ntasks-per-node=1", *srun, python, "-m", "robust_run"]
    job.step = slurm.start([*step, "--no-warm", *LEASE, *options, *script], env=job.env, cwd=tmp_path, name="srun")
    found: Path = wait_for(
        lambda: next(iter(job.log_dir.glob("slurm-*.0/journal.jsonl")), None),
        f"a run directory:\n{job.said()}",
        PATIENCE_S,
    )
    job.run_id = found.parent.name
    job.number = int(job.run_id.removeprefix("slurm-").partition(".")[0])
    return job
