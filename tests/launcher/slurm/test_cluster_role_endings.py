"""How jobs of several roles end on a real Slurm, and go on after a requeue: in the same run directory, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import script, wait_for
from role_jobs import FILE, ROLLOUT, TRAINER
from slurm_cluster import SlurmCluster
from slurm_jobs import PATIENCE_S, ROBUST, ROBUST_RUN

pytestmark = pytest.mark.timeout(600)  # they wait for Slurm, most of the time

COUNT = 40


class Job:
    """One that `robust slurm submit` has put into the queue."""

    def __init__(self, slurm: SlurmCluster, folder: Path, *sbatch: str, options: tuple[str, ...] = ()) -> None:
        self.slurm, self.folder = slurm, folder
        script(folder, TRAINER.replace("COUNT", str(COUNT)), "trainer.py")
        script(folder, ROLLOUT, "rollout.py")
        (folder / "roles.toml").write_text(FILE % "")
        (folder / "hold").write_text(str(COUNT // 2))
        command = [*ROBUST_RUN, *options, "--roles", "roles.toml"]
        said = slurm.run(*ROBUST, "slurm", "submit", *sbatch, "--", *command, cwd=folder)
        self.number = int(said.split()[2])
        self.run = folder / f"robust-runs/slurm-{self.number}.0"

    def said(self) -> str:
        """Return its output so far."""
        log = self.folder / f"robust-runs/slurm-{self.number}.out"
        return log.read_text(errors="replace") if log.exists() else ""

    def wait_said(self, words: str) -> None:
        wait_for(lambda: words in self.said(), f"{words!r}: {self.said()}", PATIENCE_S)

    def is_half_done(self) -> None:
        """Wait until it waits for the rollouts, which hold the other half."""
        path = self.folder / "trained"
        wait_for(lambda: path.exists() and int(path.read_text() or 0) >= COUNT // 2 - 3, self.said, PATIENCE_S)

    def starts(self, name: str) -> list[str]:
        return sorted(path.name for path in self.folder.glob(f"ran-{name}.*"))

    def is_done(self) -> None:
        """Let it go on to its end: each sample counts once, in one run directory."""
        (self.folder / "hold").unlink()
        self.ended("COMPLETED")
        history = json.loads((self.folder / "history").read_text())
        assert sorted(map(int, history)) == list(range(COUNT)), self.said()
        assert [path.name for path in self.folder.glob("robust-runs/*/roles.jsonl")] == ["roles.jsonl"]
        assert (self.run / "roles.jsonl").exists()

    def ended(self, state: str) -> None:
        try:
            self.slurm.wait_state(self.number, state)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None
        for host in self.slurm.nodes:
            if host._init is not None:
                wait_for(lambda host=host: not self.slurm.left_on(host), f"{host.name} to be empty", 60.0)  # type: ignore[misc]


def test_a_requeued_job_goes_on_with_its_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, "-N2")
    job.is_half_done()
    slurm.run("scontrol", "requeue", str(job.number))
    job.wait_said("goes on with the run in")
    wait_for(lambda: len(job.starts("trainer-0")) == 2, f"the trainer again: {job.said()}", PATIENCE_S)
    job.is_done()
    assert [name.split("-")[2].partition(".")[2] for name in job.starts("trainer-0")] == ["1.0", "2.0"]


def test_a_job_whose_time_is_over_is_warned_ended_and_requeued(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, "-N2", "-t", "1", options=("--warn-before", "50"))
    job.wait_said("its time is over: job")
    assert "the time limit is near: it is ended and requeued" in job.said()
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=20")
    job.wait_said("goes on with the run in")
    job.is_done()


def test_a_job_that_is_cancelled_ends_in_good_order(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, "-N2")
    job.is_half_done()
    slurm.run("scancel", str(job.number))
    job.ended("CANCELLED")
    assert "requeued" not in job.said()
    last = json.loads((job.run / "roles.jsonl").read_bytes().splitlines()[-1])
    assert "finish" in [action["type"] for action in last["actions"]], job.said()
    assert "is started again" not in job.said()
    assert "which have 20 s to end" in job.said(), "Slurm kills what is left after KillWait"


def test_the_job_of_a_node_that_leads_and_is_lost_is_requeued(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, "-N2")
    job.is_half_done()
    slurm["node-1"].power_off()
    job.wait_said("goes on with the run in")
    job.is_done()
