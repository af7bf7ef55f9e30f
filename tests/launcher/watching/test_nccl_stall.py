"""A live job that stands still inside NCCL: only the plugin's traces show it, and the job is healed as --on-hang says.

There is no GPU here: each worker plays to the plugin what NCCL would have told it in a stall of the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, running, script, wait_for
from tracer.nccl.conftest import compiler, driver, plugin  # noqa: F401 - fixtures

from robust_run.tracer.types import Scene

#: In attempt 0 NCCL comes to stand still; then the program waits for the GPU, as far as Python can see: it sleeps.
PROGRAM = """
import glob, os, sys, time
sys.path.insert(0, {tests!r})
from tracer.nccl.playing import Rank
from tracer.nccl.simulate import Broken, Call, Group, Model, World, commands_of
from robust_run.tracer.plugin import layout

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
(ring,) = glob.glob(f"/dev/shm/robust-run-{{os.environ['TEST_JOB']}}-*/attempt_{{attempt}}-{{rank}}.steps.ring")
path = ring.removesuffix(".ring") + layout.SUFFIX
layout.create(path)
calls = tuple(Call(0, "ring", 30, "AllGather") for _ in range(5))
world = World(4, 1, (Group("tp_3", (0, 1, 2, 3), 1),), calls)
model = Model(world, None if attempt else Broken({kind!r}, 2, 4, {after}), 5)
model.run()
process = Rank({driver!r}, {plugin!r}, 6, path)


def synchronize():
    open(f"stuck-{{rank}}", "w").close()
    while attempt == 0 and not os.path.exists("go on"):
        process.play()  # as NCCL's proxy thread, which never sleeps while it has work
        time.sleep(0.05)


open(f"ready-{{attempt}}-{{rank}}", "w").close()
while not all(os.path.exists(f"ready-{{attempt}}-{{each}}") for each in range(4)):
    time.sleep(0.01)  # one that starts late would be missed by the others
process.play(commands_of(model, rank, 6))
synchronize()
process.close()
"""


@pytest.fixture
def program(driver: str, plugin: str, tmp_path: Path) -> Any:  # noqa: F811
    """Writes the program, with a fault of rank 2."""

    def write(kind: str, after: int) -> str:
        tests = str(Path(__file__).parents[2])
        text = PROGRAM.format(tests=tests, driver=driver, plugin=plugin, kind=kind, after=after)
        return script(tmp_path, text)

    return write


def incident(job: Job, number: int = 1) -> dict[str, Any]:
    path = job.run_dir / "incidents" / f"{number:04d}.json"
    found: dict[str, Any] = json.loads(wait_for(lambda: path.exists() and path.read_text(), f"incident {number}"))
    return found


def robust(job: Job, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", "from robust_run.robust_cli import main; main()", *arguments, str(job.run_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_gpu_that_stands_still_is_named_and_the_job_is_started_again(program: Any, tmp_path: Path) -> None:
    arguments = ("--nproc-per-node", "4", "--on-hang", "relaunch", program("gpu", 9))
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        assert job.finish() == 0
        job.assert_nothing_left()
    found = incident(job)
    assert found["verdict"]["sentence"] == (
        "all 4 ranks are in all_gather #1204 of tp_3; rank 2 posted 8 chunks that its GPU never made ready"
    )
    assert (found["verdict"]["kind"], found["verdict"]["ranks"]) == ("comm_stall", [2])
    assert (found["verdict"]["confidence"], found["action"]["name"]) == ("high", "relaunch")
    assert found["verdict"]["sentence"] in job.err
    assert len(job.events("attempt_started")) == 2
    import msgspec

    scene = msgspec.json.decode((job.run_dir / "incidents" / "0001.scene.json").read_bytes(), type=Scene)
    assert all(sight.nccl is not None and sight.nccl.flows for sight in scene.ranks)
    assert scene.ranks[2].nccl_log, "how it came about"
    assert "gpu_ready 129" in robust(job, "incident")
    robust(job, "timeline", "--attempt", "0", "-o", str(tmp_path / "timeline.json"))
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert any(event["name"] == "all_gather #1204 tp_3 (unfinished)" and event["pid"] == 2 for event in events)


def test_one_who_is_late_is_reported_with_where_it_is(program: Any, tmp_path: Path) -> None:
    arguments = ("--nproc-per-node", "4", "--on-hang", "report", program("late", 0))
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        found = incident(job)
        assert found["action"]["name"] == "report"
        assert (found["verdict"]["kind"], found["verdict"]["ranks"]) == ("hang", [2])
        assert found["verdict"]["sentence"].startswith("rank 2 never joined all_gather #1204 of ")
        assert " synchronize" in found["verdict"]["sentence"]
        why = robust(job, "why")
        assert "NCCL: 3 of 4 ranks are in all_gather #1204 of" in why
        assert "if this goes on: rank 2 never joined" in why
        assert "send (member 0 -> 1, channel 0): posted" in robust(job, "stacks", "--rank", "0")
        assert "rank 2 has not called it (the last was #1203)" in robust(job, "stacks")
        (tmp_path / "go on").touch()
        assert job.finish() == 0, "its workers were left alone"
        job.assert_nothing_left()
    assert len(job.events("attempt_started")) == 1
