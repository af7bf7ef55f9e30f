"""What real jobs' starts are spent on, as a user sees it: a line, startup.json, and `robust report --startup`."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import start_all, write
from fake_torch import write_fake_torch
from hosts import Cluster, need_hosts
from jobs import PATIENT, Job, run, running, script, wait_for
from small_optimizer import SGD

from robust_run.report.files import startup as file
from robust_run.report.startup.phases import seconds_of
from robust_run.report.startup.types import AttemptStartup, RankRow
from tests.launcher.images.image_ground import needs_images, root_image_of_run
from tests.launcher.images.setup_ground import Ground, ground_at

#: Loads a checkpoint, slowly on rank 1 if it is told to, and makes steps; fails once if it is told to.
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
OPTIMIZER
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Slow:
    def __reduce__(self):
        return time.sleep, (float(sys.argv[1]) if rank == 1 else 0.0,)


torch.save([Slow()], f"checkpoint-{rank}")
torch.load(f"checkpoint-{rank}", weights_only=False)
model = torch.nn.Linear(4, 4)
optimizer = SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.barrier()
while attempt < int(sys.argv[2]) and not os.path.exists("go"):
    time.sleep(0.01)
dist.destroy_process_group()
sys.exit(3 if attempt < int(sys.argv[2]) else 0)
""".replace("OPTIMIZER", SGD)

#: Options of jobs that are not to be started again: none starts a warm process for that.
ONCE = ("--max-restarts", "0")

#: A program that makes a step where torch is a fake.
STEP = "import torch\ntorch.optim.Optimizer().step()\n"


def starts(job: Job) -> list[AttemptStartup]:
    found = file.read(str(job.run_dir / file.NAME))
    return list(found.attempts) if found is not None else []


def spent(row: RankRow) -> dict[str, float]:
    return {str(phase): taken_s for phase, taken_s in seconds_of(row).items()}


def robust(job: Job, *arguments: str, code: int = 0, command: str = "report") -> str:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from robust_run.robust_cli import main; main()",
            command,
            *arguments,
            str(job.run_dir),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_start_is_measured_told_and_drawn(tmp_path: Path) -> None:
    code, job = run(tmp_path, "--nproc-per-node", "2", *ONCE, script(tmp_path, TRAIN), "8", "0")
    assert code == 0
    (line,) = [line for line in job.err.splitlines() if "first step after" in line]
    assert "imports" in line
    assert "init" in line
    (start,) = starts(job)
    assert (start.complete, start.ranks, start.stepped_ranks, start.nodes) == (True, 2, 2, 1)
    assert start.critical is not None
    assert start.critical.rank == 1
    assert start.critical.loaders == ("torch.load",)
    load_s = spent(start.critical)["load"]
    assert load_s > 7.9, "more than a busy machine takes from the other"
    assert f"load {load_s:.1f} (slowest: rank 1)" in line
    for row in start.rows:
        assert {"agent", "spawn", "imports", "init", "load", "first_step"} <= spent(row).keys()
        assert sum(spent(row).values()) == pytest.approx(row.first_step_s, abs=0.01)
    text = robust(job, "--startup")
    assert "first step after" in text
    assert "\x1b" not in text, "it is piped"
    assert text.count("\nrank 0 ") == 1
    page = tmp_path / "page.html"
    robust(job, "--startup", "--html", str(page))
    assert "rank 1" in page.read_text()
    told = json.loads(robust(job, "--startup", "--json"))
    assert told["startup"]["attempts"][0]["total_s"] == start.total_s
    assert f"first step after {start.total_s:.1f} s" in line
    status = json.loads(robust(job, "--json", command="status"))
    assert status["attempts"][0]["startup_s"] == start.total_s, "one number, wherever it is told"
    assert isinstance(told["advice"], list)


def test_a_warm_restart_imports_next_to_nothing(tmp_path: Path) -> None:
    script(tmp_path, "import time\ntime.sleep(8)\n", "large.py")  # however slow the machine is at other things
    path = script(tmp_path, f"import large\n{TRAIN}")
    preload = "torch,torch.distributed,large"
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}
    arguments = ("--nproc-per-node", "2", "--preload", preload, path, "0", "1")
    with running(tmp_path, *arguments, env=env, prefix=PATIENT) as job:
        wait_for(lambda: len(job.events("standby_ready")) >= 2 or job.process.poll() is not None, "standby workers")
        (tmp_path / "go").touch()
        assert job.finish() == 0, job.err
        job.assert_nothing_left()
    first, second = starts(job)
    assert second.how == (("promote", 2),)
    assert first.critical is not None
    assert second.critical is not None
    assert spent(second.critical).get("imports", 0.0) < 0.3 * spent(first.critical)["imports"]
    assert "agent" not in spent(second.critical), "it was there already"
    assert "first step of attempt 1 after" in job.err
    assert "first step after" in robust(job, "--startup", "--attempt", "0")
    assert "there are 0, 1" in robust(job, "--startup", "--attempt", "7", code=2)


def test_a_start_that_goes_on_can_be_looked_at(tmp_path: Path) -> None:
    text = "import os, time\nopen('up', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    with running(tmp_path, *ONCE, script(tmp_path, text)) as job:
        job.wait_for_file("up", tmp_path)
        (start,) = wait_for(lambda: starts(job), "startup.json", 60.0)
        assert not start.complete
        assert "no rank has made its first step" in robust(job, "--startup")
        (tmp_path / "go").touch()
        assert job.finish() == 0
    assert starts(job)[0].complete
    assert "first step" not in job.err


@pytest.mark.parametrize("switch", ["ROBUST_STARTUP", "ROBUST_TRACE"])
def test_it_can_be_switched_off(tmp_path: Path, switch: str) -> None:
    write_fake_torch(tmp_path)
    code, job = run(tmp_path, *ONCE, script(tmp_path, STEP), env={switch: "0"})
    assert code == 0
    assert starts(job) == []
    assert "first step" not in job.err
    assert "ROBUST_STARTUP=0" in robust(job, "--startup", code=1)


def test_what_a_run_directory_holds_in_its_place_is_refused_in_a_line(tmp_path: Path) -> None:
    _, job = run(tmp_path, *ONCE, script(tmp_path, ""))
    (job.run_dir / file.NAME).write_text("{")
    assert "not a startup.json" in robust(job, "--startup", code=1)


def test_without_an_option_the_pages_are_written(tmp_path: Path) -> None:
    _, job = run(tmp_path, *ONCE, script(tmp_path, ""))
    assert "report.html" in robust(job)
    assert (job.run_dir / "report.html").exists()


# --- places


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with ground_at(tmp_path) as made:
        yield made


def test_a_set_up_has_its_part(ground: Ground) -> None:
    # A compiler that is ended with the job would leave files where set-ups work.
    path = script(ground.folder, f"import tiny\n{TRAIN}")
    code, job = ground.run(*ground.options(), *ONCE, path, "0", "0", ROBUST_TRACE_NATIVE="0")
    shutil.rmtree(ground.folder / "work" / f"torchinductor_{getpass.getuser()}", ignore_errors=True)  # torch's own
    assert code == 0, job.err
    (start,) = starts(job)
    assert start.critical is not None
    assert spent(start.critical)["snapshot"] > 0.05
    assert {"setup", "setup-built"} <= set(start.uses)
    assert ", env " in next(line for line in job.err.splitlines() if "first step after" in line).replace(
        ": env", ", env"
    )


def test_an_image_has_its_part(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    needs_images()
    image = root_image_of_run(tmp_path_factory) / "root.sqsh"
    options = ("--image", str(image), "--image-cache", str(tmp_path / "cache"))
    code, job = run(tmp_path, *options, script(tmp_path, "import json, argparse\n"))
    assert code == 0, job.err
    (start,) = starts(job)
    assert start.critical is not None
    assert [span.phase for span in start.critical.spans][:4] == ["agent", "image", "agent", "spawn"]
    assert "imports" in spent(start.critical)
    assert start.uses == ("image", "preload-auto")


# --- several nodes


def test_two_nodes_tell_one_controller_and_the_slow_one_is_named(tmp_path: Path) -> None:
    need_hosts()
    with Cluster(2, tmp_path) as cluster:
        options = ["--nnodes", "2", "--no-warm"]
        job = start_all(cluster, write(tmp_path, TRAIN), "8", "0", tmp_path=tmp_path, options=options)
        assert job.finish() == {"node-0": 0, "node-1": 0}
        found = file.read(str(job.run_dir / file.NAME))
        said = [line for host in cluster for line in job.on(host).err.splitlines() if "first step after" in line]
        job.assert_nothing_left()
    assert found is not None
    (start,) = found.attempts
    assert (start.nodes, start.seen_ranks, start.stepped_ranks, start.complete) == (2, 2, 2, True)
    assert sorted(row.node for row in start.node_rows) == ["node-0", "node-1"]
    slow = next(row for row in start.rows if row.rank == 1)
    assert all("meet" in spent(row) for row in start.rows)
    assert start.critical == slow
    assert len(said) == 1, "one of the nodes says it"
    assert f"(slowest: {slow.node})" in said[0]


def test_it_fits_the_file_system_of_a_job_without_logs(tmp_path: Path) -> None:
    write_fake_torch(tmp_path)
    code, job = run(tmp_path, *ONCE, script(tmp_path, STEP), log_dir=Path("/dev/null"))
    assert code == 0
    assert "first step after" in job.err
    assert not os.path.exists(job.run_dir)
