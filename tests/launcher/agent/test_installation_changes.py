"""Jobs whose installation is removed or replaced while they run: what is in memory goes on, heals, and ends as ever."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from etcd import free_port
from jobs import STUCK_S, Job, kill, running, wait_for
from small_optimizer import SGD

import robust_run

#: Trains until the file `enough` is there; each start of it leaves a file.
TRAIN = f"""
import os, pathlib, time
%(first)s
import torch, torch.distributed as dist
{SGD}
rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path(f"began-{{attempt}}-{{rank}}-{{os.getpid()}}").touch()
dist.init_process_group("gloo")
weights = torch.nn.Parameter(torch.zeros(4))
optimizer = SGD([weights], 0.01)
step = is_enough = 0
while not is_enough:
    weights.grad = torch.tensor([float(os.path.exists("enough"))] * 4)
    dist.all_reduce(weights.grad)
    is_enough = weights.grad[0].item() == dist.get_world_size()
    optimizer.step()
    step += 1
    if step == 5:
        pathlib.Path(f"stepped-{{attempt}}-{{rank}}").touch()
    time.sleep(0.02)
dist.destroy_process_group()
"""

#: The same without torch, where neither workers that wait nor steps matter.
WAIT = """
import os, pathlib, time
rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path(f"stepped-{attempt}-{rank}").touch()
while not os.path.exists("enough"):
    time.sleep(0.02)
"""

#: Starts the launcher so that it imports ahead at once, and leaves a file when that is done.
AT_ONCE = """
import sys
from robust_run import imported_ahead
def import_all(names, usual=imported_ahead.import_all):
    usual(names, lambda s: None)
    open("imported", "w").close()
imported_ahead.AFTER_S, imported_ahead.import_all = 0.2, import_all
from robust_run.cli import main
sys.argv[:4] = ["robust-run"]
main()
"""
NEVER = AT_ONCE.replace("0.2", "3600.0")


def site_of(tmp_path: Path) -> Path:
    """Return the folder that a test's job is installed in. It lies outside of the job's own code, which has versions."""
    return tmp_path.with_name(f"{tmp_path.name}-installed") / "site-packages"


@contextmanager
def training(
    tmp_path: Path, *options: str, launch: str = AT_ONCE, first: str = "", trains: bool = True
) -> Iterator[tuple[Job, Path]]:
    """Yield a job of two ranks that trains, and the folder that it and its workers are installed in."""
    site = site_of(tmp_path)
    shutil.copytree(Path(robust_run.__file__).parent, site / "robust_run", dirs_exist_ok=True)
    (tmp_path / "train.py").write_text(TRAIN % {"first": first} if trains else WAIT)
    warm = () if trains else ("--no-warm",)
    job_options = ("--nproc-per-node", "2", "--max-restarts", "3", *warm, *options, str(tmp_path / "train.py"))
    env = {"PYTHONPATH": str(site), "ROBUST_WARM_DAEMON": "off"}
    with running(tmp_path, *job_options, env=env, prefix=(sys.executable, "-c", launch)) as job:
        job.wait_for_file("stepped-0-1", tmp_path)
        wait_for(lambda: len(job.events("standby_ready")) >= 2 or not trains, "standby workers")
        wait_for((job.run_dir / "api.json").exists, "that it answers")
        if launch is AT_ONCE:
            job.wait_for_file("imported", tmp_path)
        yield job, site


def kill_rank(job: Job, attempt: int, folder: Path) -> None:
    """Kill a rank, and wait until the next attempt trains."""
    os.kill(job.pids(attempt)[1], signal.SIGKILL)
    job.wait_for_file(f"stepped-{attempt + 1}-1", folder)


def install_another(site: Path) -> None:
    """Put a version in the place of this one that has hardly a module of the same name."""
    shutil.rmtree(site / "robust_run")
    (site / "robust_run").mkdir()
    (site / "robust_run" / "__init__.py").write_text("")
    (site / "robust_run" / "version.py").write_text('__version__ = "9.9.9"\n')


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_job_heals_and_ends_well_without_what_it_was_installed_from(tmp_path: Path, change: str) -> None:
    with training(tmp_path) as (job, site):
        shutil.rmtree(site / "robust_run") if change == "removed" else install_another(site)
        kill_rank(job, 0, tmp_path)
        kill_rank(job, 1, tmp_path)
        (tmp_path / "enough").touch()
        assert job.finish() == 0, job.err
        assert "Traceback (most recent call last):\n  File" not in job.err, job.err
        assert [event["attempt"] for event in job.events("first_step")] == [0, 1, 2], "later workers are counted, too"
        assert (job.run_dir / "report.html").exists()
        job.assert_nothing_left()


def test_the_warm_process_is_not_started_again_where_it_would_run_the_program(tmp_path: Path) -> None:
    """Without our `sitecustomize` nothing stops it before the program, which it would run as one more rank 0."""
    with training(tmp_path) as (job, site):
        shutil.rmtree(site / "robust_run")
        os.kill(job.events("warm_ready")[0]["pid"], signal.SIGKILL)
        wait_for(lambda: len(job.events("warm_refused")) >= 2, "that none takes its place")
        kill_rank(job, 0, tmp_path)
        (tmp_path / "enough").touch()
        assert job.finish() == 0, job.err
        assert "is not in" in job.events("warm_refused")[-1]["reason"]
        assert len(list(tmp_path.glob("began-0-*"))) == 2, "each rank was started once"


def test_a_job_that_lacks_what_it_needs_ends_in_one_line_and_can_be_resumed(tmp_path: Path) -> None:
    with training(tmp_path, launch=NEVER, trains=False) as (job, site):
        shutil.move(site / "robust_run", tmp_path / "away")
        os.kill(job.pids()[1], signal.SIGKILL)
        assert job.finish() == 1, job.err
        said = [line for line in job.err.splitlines() if line.startswith("robust-run: robust-run")]
        assert len(said) == 1, job.err
        assert f"is not in {site} any more since this job was started" in said[0]
        assert "please report it" not in job.err
        job.assert_nothing_left()
    shutil.move(tmp_path / "away", site / "robust_run")
    (tmp_path / "enough").touch()
    again = subprocess.run(
        [sys.executable, "-m", "robust_run", "--resume", str(job.run_dir)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=STUCK_S,
    )
    assert again.returncode == 0, again.stderr


def test_workers_start_from_nothing_where_a_package_was_replaced_that_waiting_ones_have_imported(
    tmp_path: Path,
) -> None:
    """A worker of before would go on with half of each version."""

    def install(number: int) -> None:
        made = tmp_path / f"mine-{number}"
        made.mkdir()
        (made / "__init__.py").write_text(f"NUMBER = {number}\n")
        (made / "late.py").write_text(f"from mine import NUMBER\nassert NUMBER == {number}, 'half of each'\n")
        shutil.rmtree(site / "mine", ignore_errors=True)
        shutil.move(made, site / "mine")

    site = site_of(tmp_path)
    site.mkdir(parents=True)
    preload = ("--preload", "torch,torch.distributed,mine")
    install(1)
    with training(tmp_path, *preload, first="import mine, mine.late") as (job, _):
        install(2)
        kill_rank(job, 0, tmp_path)
        wait_for(lambda: len(job.events("warm_ready")) >= 2, "a warm process of what is there now")
        kill_rank(job, 1, tmp_path)
        (tmp_path / "enough").touch()
        assert job.finish() == 0, job.err
        assert "2 spawned: mine was replaced on disk since the warm process imported it" in job.err


def test_a_folder_in_memory_that_was_cleaned_away_is_made_again(tmp_path: Path) -> None:
    """As systemd does when a user's last session ends (RemoveIPC)."""
    with training(tmp_path) as (job, _):
        (memory,) = Path("/dev/shm").glob(f"robust-run-{job.run_id}-*")
        shutil.rmtree(memory)
        kill_rank(job, 0, tmp_path)
        (tmp_path / "enough").touch()
        assert job.finish() == 0, job.err
        assert "cannot write" not in job.err
        assert [event["attempt"] for event in job.events("first_step")] == [0, 1]
        job.assert_nothing_left()


def test_a_controller_that_died_while_its_installation_was_away_comes_back_with_it(tmp_path: Path) -> None:
    """As with a file system that does not answer for a minute. It is a process of its own where there may be several nodes."""
    many = ("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-conf", "last_call_timeout=0")
    with training(tmp_path, *many, "--local-addr", "127.0.0.1", trains=False) as (job, site):
        (site / "robust_run").rename(tmp_path / "away")
        (site / "robust_run").mkdir()
        install_another(site)  # where a test runs there may be another one behind it
        # It may just have died by itself, for what it had not imported yet, and be started again and again.
        controllers = wait_for(
            lambda: [each for each in job.leftovers() if "controller_process" in each], "a controller"
        )
        kill(int(controllers[0].partition(":")[0]))
        assert job.process.stderr is not None
        tried = next(line for line in job.process.stderr if "the controller cannot be started" in line)
        assert f"was replaced by 9.9.9 in {site}" in tried
        shutil.rmtree(site / "robust_run")
        (tmp_path / "away").rename(site / "robust_run")
        wait_for(lambda: job.events("controller_resumed"), "the controller")
        kill_rank(job, 0, tmp_path)
        (tmp_path / "enough").touch()
        assert job.finish() == 0, job.err
        assert "the controller is back" in job.err
        job.assert_nothing_left()
