"""A job whose ranks wait for one that is stuck, as a user lives through it. Every kind of fault: `tests/faults`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jobs import Job, running, script, wait_for

from robust_run.tracer.types import Scene

#: Trains; in attempt 0 rank 1 gets stuck at step 20 for as long as a file says so. Its calls may take as long as LIMIT_S says.
STAGGERED = """
import time
from datetime import timedelta
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
time.sleep((0.0, 26.0, 13.0)[dist.get_rank()])
dist.barrier()
"""
STUCK = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
dist.init_process_group("gloo")
_set_pg_timeout(timedelta(seconds=float(os.environ.get("LIMIT_S", "1800"))))
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def read_batch():
    open("stuck", "w").close()
    while not os.path.exists("go on"):
        time.sleep(1.0)


for step in range(100000):
    if rank == 1 and step == 20 and attempt == 0:
        read_batch()
    model(torch.ones(4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    done = torch.tensor([float(os.path.exists("done"))])
    dist.all_reduce(done)
    if done.item():
        break
dist.destroy_process_group()
"""

#: Trains by DistributedDataParallel, whose buckets C++ reduces; then rank 1 does not come to a call like a compiled graph's.
IN_A_GRAPH = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(25):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
if dist.get_rank() == 1:
    time.sleep(3600)
functional = torch.ops._c10d_functional
functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD.group_name))
"""


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


def incident(job: Job, number: int = 1) -> dict[str, Any]:
    path = job.run_dir / "incidents" / f"{number:04d}.json"
    return json.loads(wait_for(lambda: path.exists() and path.read_text(), f"incident {number}"))


def test_the_stuck_rank_is_named_and_has_as_long_as_it_is_given(tmp_path: Path) -> None:
    path = script(tmp_path, STUCK)
    arguments = ("--nproc-per-node", "3", "--hang-patience", "20", path)
    with running(tmp_path, *arguments, cwd=tmp_path, env={"LIMIT_S": "600"}) as job:
        job.wait_for_file("stuck", tmp_path)
        told = incident(job)
        assert told["action"]["name"] == "report"
        assert 19 < told["action"]["at_s"] - told["onset_s"] < 21
        assert "it may end by itself; else the attempt is ended in " in told["action"]["reason"]
        assert len(job.events("attempt_started")) == 1
        found = incident(job, 2)
        (tmp_path / "done").touch()
        assert job.finish() == 0
        job.assert_nothing_left()
    assert found["action"]["name"] == "relaunch"
    assert (found["verdict"]["kind"], found["verdict"]["ranks"]) == ("hang", [1])
    assert found["decided_s"] >= told["action"]["at_s"]
    assert "Timed out waiting" not in job.err, "torch did not come first"
    assert len(job.events("attempt_started")) == 2


def test_ranks_that_come_one_after_the_other_are_left_alone_as_long_as_torch_waits_for_each(tmp_path: Path) -> None:
    """gloo's limit counts per message: this barrier takes 26 s in a group whose limit is 20 s, and succeeds."""
    path = script(tmp_path, STAGGERED)
    with running(tmp_path, "--nproc-per-node", "3", "--max-restarts", "0", path, cwd=tmp_path) as job:
        assert job.finish() == 0, job.err
        job.assert_nothing_left()
    assert incident(job)["action"]["name"] == "report", "it was named meanwhile"
    assert len(job.events("attempt_started")) == 1


def test_who_asks_for_it_has_the_job_go_on_at_once(tmp_path: Path) -> None:
    path = script(tmp_path, STUCK)
    with running(tmp_path, "--nproc-per-node", "3", "--on-hang", "relaunch", path, cwd=tmp_path) as job:
        job.wait_for_file("stuck", tmp_path)
        found = incident(job)
        (tmp_path / "done").touch()
        assert job.finish() == 0
        job.assert_nothing_left()
    verdict = found["verdict"]
    assert (verdict["kind"], verdict["ranks"], verdict["confidence"]) == ("hang", [1], "high")
    assert verdict["sentence"].startswith("rank 1 never joined all_reduce #")
    assert "train.py:16 read_batch" in verdict["sentence"]
    assert found["action"]["name"] == "relaunch"
    assert verdict["sentence"] in job.err, "and that is what the terminal shows"
    assert len(job.events("attempt_started")) == 2
    assert (job.run_dir / "attempt_0" / "1" / "ring").exists(), "what it did is kept for a timeline"


def stacks_of_who_sleeps(job: Job) -> list[str]:
    """Ask until no look falls on one of the moments in which the rank's own threads work: some, on a busy machine."""
    for _ in range(10):
        stacks = robust(job, "stacks").splitlines()
        if "asleep" in stacks[0]:
            break
    return stacks


def test_a_hang_that_is_only_reported_can_be_looked_at_and_may_end(tmp_path: Path) -> None:
    path = script(tmp_path, STUCK)
    arguments = ("--nproc-per-node", "3", "--on-hang", "report", path)
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        job.wait_for_file("stuck", tmp_path)
        assert incident(job)["action"]["name"] == "report"
        why = robust(job, "why")
        assert "all_reduce #" in why.splitlines()[0]
        assert "if this goes on: rank 1 never joined" in why
        stacks = stacks_of_who_sleeps(job)
        assert stacks[0] == "1 rank (1): asleep in train.py:16 read_batch"
        assert any("read_batch" in line for line in stacks[:6])
        one = robust(job, "stacks", "--rank", "1")
        assert "sleeps" in one
        assert "train.py:16 read_batch" in one
        assert "verdict: hang, high confidence" in robust(job, "incident", "1")
        heatmap = tmp_path / "steps.svg"
        assert "calls of 3 ranks (attempt 0)" in robust(job, "timeline", "--heatmap", str(heatmap))
        spans = json.loads((job.run_dir / "timeline.json").read_text())["traceEvents"]
        assert any("all_reduce" in span.get("name", "") and "unfinished" in str(span) for span in spans)
        assert heatmap.read_text().startswith("<svg")
        (tmp_path / "done").touch()
        (tmp_path / "go on").touch()
        assert job.finish() == 0, "its workers were left alone"
    assert len(job.events("attempt_started")) == 1
    assert "all_reduce" in robust(job, "why"), "a dead job tells what was seen"


def test_a_hang_that_is_only_reported_costs_its_time_and_the_job_is_called_hung_while_it_lasts(tmp_path: Path) -> None:
    arguments = ("--nproc-per-node", "2", "--on-hang", "report", script(tmp_path, STUCK))
    (tmp_path / "go on").touch()
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        job.wait_for_file("stuck", tmp_path)
        stopped = job.pids()[1]
        os.kill(stopped, signal.SIGSTOP)
        assert incident(job)["action"]["name"] == "report"
        assert robust(job, "status").startswith("HUNG for ")
        hung = json.loads(robust(job, "status", "--json"))
        assert hung["stands_still_s"] > 0.0
        robust(job, "report")
        page = (job.run_dir / "report.html").read_text()
        assert ", HUNG</span>" in page
        assert "Hung for " in page
        os.kill(stopped, signal.SIGCONT)
        wait_for(lambda: job.actions("standstill_over"), "the ranks to go on")
        assert robust(job, "status").startswith("running: ")
        later = json.loads(robust(job, "status", "--json"))
        assert later["stands_still_s"] is None
        robust(job, "report")
        page = (job.run_dir / "report.html").read_text()
        assert "HUNG" not in page
        assert "standing still" in page
        assert "ranks went on" in robust(job, "incident", "1")
        assert "ranks went on" in (job.run_dir / "incidents" / "0001.html").read_text()
        (tmp_path / "done").touch()
        assert job.finish() == 0
    assert len(job.events("wait_over")) >= 1
    told, over = job.actions("record_incident")[0], job.actions("standstill_over")[0]
    stood_s = over["at_s"] - told["onset_at_s"]
    job_view = json.loads(robust(job, "status", "--json"))
    lived_s = job_view["ended_unix_s"] - job_view["started_unix_s"]
    assert job_view["ettr"] <= 1.0 - stood_s / lived_s + 0.01, "it cost its whole time"
    assert "its ranks go on, after a standstill of" in job.err


def test_a_crash_after_a_reported_hang_is_not_shown_with_what_ranks_did_then(tmp_path: Path) -> None:
    program = STUCK.replace(
        "    optimizer.step()\n", '    assert not os.path.exists("crash") or attempt, "bad"\n    optimizer.step()\n'
    )
    arguments = ("--nproc-per-node", "2", "--on-hang", "report", script(tmp_path, program))
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        job.wait_for_file("stuck", tmp_path)
        assert incident(job)["action"]["name"] == "report"
        (tmp_path / "go on").touch()
        (tmp_path / "crash").touch()
        assert incident(job, 2)["verdict"]["kind"] == "code"
        (tmp_path / "done").touch()
        assert job.finish() == 0
    assert (job.run_dir / "incidents" / "0001.scene.json").exists()
    assert not (job.run_dir / "incidents" / "0002.scene.json").exists()
    assert "who waited for whom, seen at" in robust(job, "incident", "1")
    assert "who waited for whom" not in robust(job, "incident", "2")


def test_a_rank_that_is_stopped_goes_on_as_it_is_advised(tmp_path: Path) -> None:
    arguments = ("--nproc-per-node", "2", "--on-hang", "report", script(tmp_path, STUCK))
    (tmp_path / "go on").touch()
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        job.wait_for_file("stuck", tmp_path)
        stopped = job.pids()[1]
        os.kill(stopped, signal.SIGSTOP)
        found = incident(job)
        assert (found["verdict"]["kind"], found["action"]["name"]) == ("stopped", "report")
        assert "robust why says which process is stopped" in robust(job, "status")
        assert f"type there: kill -CONT {stopped}" in robust(job, "why")
        page = job.run_dir / "incidents" / "0001.html"
        wait_for(page.exists, "the incident's page")
        assert f"kill -CONT {stopped}</code>" in page.read_text()
        os.kill(stopped, signal.SIGCONT)
        (tmp_path / "done").touch()
        assert job.finish() == 0
        job.assert_nothing_left()
    assert "kill -CONT" not in page.read_text(), "it has ended"


def test_what_is_seen_of_a_hang_is_kept_with_the_incident(tmp_path: Path) -> None:
    import msgspec

    arguments = ("--nproc-per-node", "2", "--max-restarts", "0", "--on-hang", "relaunch", script(tmp_path, STUCK))
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        assert job.finish() == 1
        job.assert_nothing_left()
    scene = msgspec.json.decode((job.run_dir / "incidents" / "0001.scene.json").read_bytes(), type=Scene)
    assert [sight.rank for sight in scene.ranks] == [0, 1]
    assert "never joined" in job.err
    assert "not restarted: --max-restarts is 0" in job.err


def test_what_ranks_write_to_is_gone_with_their_attempt(tmp_path: Path) -> None:
    """Rings lie in memory: a job that starts again and again must not fill it."""
    program = """
    import os, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < 3:
        sys.exit(9)
    open("up", "w").close()
    while not os.path.exists("down"):
        time.sleep(0.05)
    """
    with running(tmp_path, "--nproc-per-node", "2", script(tmp_path, program), cwd=tmp_path) as job:
        job.wait_for_file("up", tmp_path)
        (memory,) = Path("/dev/shm").glob(f"robust-run-{job.run_id}-*")
        assert sorted(path.name for path in memory.glob("*.ring")) == [
            "attempt_3-0.steps.ring",
            "attempt_3-1.steps.ring",
        ]
        assert sorted(memory.glob("*.stacks")) == sorted(memory.glob("attempt_3-*.stacks"))
        (tmp_path / "down").touch()
        assert job.finish() == 0
    assert (job.run_dir / "attempt_0" / "0" / "ring").exists()


def test_without_tracing_nothing_is_written_and_nobody_is_suspected(tmp_path: Path) -> None:
    program = """
    import os, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    end_s = time.monotonic() + float(sys.argv[1])
    while dist.get_rank() == 1 and time.monotonic() < end_s and not os.path.exists("go on"):
        time.sleep(0.01)
    dist.all_reduce(torch.ones(1))
    """
    path = script(tmp_path, program)
    arguments = ("--nproc-per-node", "2", "--hang-after", "1", "--on-hang", "report", path)
    with running(tmp_path, *arguments, "4", env={"ROBUST_TRACE": "0"}) as job:
        assert job.finish() == 0
        job.assert_nothing_left()
    assert not job.events("hang_suspected")
    with running(tmp_path, *arguments, "100") as job:
        wait_for(lambda: job.events("hang_suspected"), "such a wait to be seen where ranks are traced")
        (tmp_path / "go on").touch()
        assert job.finish() == 0


def test_a_wait_that_torch_ended_by_its_limit_is_told_with_the_place_and_nobody_is_said_to_go_on(
    tmp_path: Path,
) -> None:
    program = """
    import time
    from datetime import timedelta
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))
    """
    arguments = ("--nproc-per-node", "3", "--hang-after", "1", "--max-restarts", "0", script(tmp_path, program))
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        assert job.finish() == 1
    assert [one["action"] for one in job.actions("record_incident")] == ["report", "stop"]
    assert "go on" not in job.err
    assert not job.actions("standstill_over")
    last = next(line for line in job.err.splitlines() if "FAILED" in line)
    assert "until torch's time limit of 20 s ended that); when last seen it was in train.py:8 <module>, asleep" in last


def test_a_rank_that_is_stopped_is_told_from_one_that_sleeps(tmp_path: Path) -> None:
    program = STUCK.replace("time.sleep(1.0)", "os.kill(os.getpid(), signal.SIGSTOP)")
    arguments = ("--nproc-per-node", "2", "--max-restarts", "0", script(tmp_path, program))
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        assert job.finish() == 1
        job.assert_nothing_left()
    verdict = incident(job)["verdict"]
    assert (verdict["kind"], verdict["ranks"]) == ("stopped", [1])


#: Rank 0 is stuck when the others have ended: before or after it has left the group, in a thread, in an exit handler.
LEFT_BEHIND = """
import atexit, os, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
where = sys.argv[1]

def hold_on():
    while not os.path.exists("go on"):
        time.sleep(0.5)

rank = dist.get_rank()
if rank == 0 and where == "before":
    hold_on()
dist.destroy_process_group()
if rank == 0:
    if where == "after":
        hold_on()
    elif where == "thread":
        threading.Thread(target=hold_on).start()
    elif where == "exit":
        atexit.register(hold_on)
"""


@pytest.mark.parametrize("where", ["before", "after", "thread", "exit"])
def test_a_rank_that_the_others_leave_behind_is_named_and_never_started_again(tmp_path: Path, where: str) -> None:
    path = script(tmp_path, LEFT_BEHIND)
    with running(tmp_path, "--nproc-per-node", "3", path, where, cwd=tmp_path) as job:
        found = incident(job)
        (tmp_path / "go on").touch()
        assert job.finish() == 0, "it is left alone"
        job.assert_nothing_left()
    verdict = found["verdict"]
    assert (verdict["kind"], verdict["rule"], verdict["ranks"]) == ("hang", "leftover", [0])
    assert verdict["sentence"].startswith("rank 0 still runs ")
    assert " after the 2 others ended with exit code 0; it is asleep in " in verdict["sentence"]
    assert found["action"]["name"] == "report"
    assert "2 of 3 ranks have ended with exit code 0, so the job is not started again" in job.err
    assert len(job.events("attempt_started")) == 1


def test_a_user_s_own_signals_are_left_alone(tmp_path: Path) -> None:
    """No signal is taken from the program, and SIGUSR1 and SIGUSR2 reach only handlers of its own."""
    program = """
    import os, signal, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    assert signal.getsignal(signal.SIGUSR1) == signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    got = []
    signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
    open("ready", "w").close()
    while not got:
        time.sleep(0.01)
    """
    with running(tmp_path, script(tmp_path, program), cwd=tmp_path) as job:
        job.wait_for_file("ready", tmp_path)
        os.kill(job.pid, signal.SIGUSR2)
        assert job.finish() == 0


@pytest.mark.parametrize("option", [("--hang-after", "0.1"), ("--slow-round", "-1"), ("--on-hang", "panic")])
def test_senseless_values_are_refused(tmp_path: Path, option: tuple[str, str]) -> None:
    with running(tmp_path, *option, "train.py") as job:
        assert job.finish() == 2
    assert option[0] in job.err


def test_a_wait_in_a_compiled_graph_is_seen_though_no_call_of_a_ring_shows_it(tmp_path: Path) -> None:
    arguments = ("--nproc-per-node", "2", "--hang-after", "2", script(tmp_path, IN_A_GRAPH))
    with running(tmp_path, *arguments, cwd=tmp_path) as job:
        verdict = incident(job)["verdict"]
        kept = job.run_dir / "incidents" / "0001.scene.json"
        wait_for(kept.exists, "the scene, which is written after the incident")
        scene = msgspec.json.decode(kept.read_bytes(), type=Scene)
    assert (verdict["kind"], verdict["ranks"], verdict["rule"]) == ("hang", [1], "never_joined")
    assert "rank 1 never joined all_reduce #" in verdict["sentence"]
    assert "it is in train.py:12 <module>" in verdict["sentence"]
    flight = scene.ranks[1].flight
    assert flight is not None
    (world,) = flight.groups
    assert world.name == "0"
    assert world.enqueued == world.completed >= 25, (
        "each backward pass reduces a bucket, which the worker itself counts"
    )
