"""Ranks of several nodes wait for one that is stuck: on real hosts, with real collectives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
from clusters import PATIENT, STEPS, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for
from small_optimizer import SGD

from robust_run.launcher.operator.views.course_reader import CourseReader

#: Three hosts import torch at once, on a machine that is busy.
TORCH_S = 180.0

pytestmark = pytest.mark.timeout(600)

#: In attempt 0 rank 1 gets stuck at step 20. Calls may take a minute.
STUCK = f"""{STEPS}
    from datetime import timedelta
    import torch, torch.distributed as dist
    from torch.distributed.distributed_c10d import _set_pg_timeout
{indent(SGD, "    ")}

    def read_batch():
        pause(1000)


    dist.init_process_group("gloo")
    _set_pg_timeout(timedelta(seconds=600))
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    for number in range(100000):
        if RANK == 1 and number == 20 and ATTEMPT == 0:
            read_batch()
        model(torch.ones(4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        step()
        pause(0.01)
        done = torch.tensor([float(os.path.exists(DONE))])
        dist.all_reduce(done)
        if done.item():
            break
    dist.destroy_process_group()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Hosts whose clocks differ: an hour."""
    need_hosts()
    with Cluster(3, tmp_path, skew_s={1: 3600}) as cluster:
        yield cluster


def test_the_node_of_a_stuck_rank_is_evicted_and_the_standby_takes_its_place(cluster: Cluster, tmp_path: Path) -> None:
    options = ["--nnodes", "2", "--standby", "1", "--hang-patience", "40", *PATIENT]
    job = start_all(cluster, write(tmp_path, STUCK), tmp_path=tmp_path, options=options)
    told = job.wait_for_incident(timeout_s=TORCH_S)
    assert told["action"]["name"] == "report", "it may be a wait"
    incident = job.wait_for_incident(2, timeout_s=TORCH_S)
    assert incident["decided_s"] >= told["action"]["at_s"]
    world = job.layout(0)
    verdict = incident["verdict"]
    assert (verdict["kind"], verdict["ranks"], verdict["nodes"]) == ("hang", [1], [world[1]])
    assert verdict["sentence"].startswith(f"rank 1 (node {world[1]}) never joined all_reduce #")
    assert "it is in train.py:14 pause" in verdict["sentence"]
    assert incident["action"]["name"] == "evict"
    (standby,) = {"node-0", "node-1", "node-2"} - set(world)
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    assert job.layout(1) == [world[0], standby]
    job.finish()
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_controller_that_is_killed_while_ranks_stand_still_hears_from_the_nodes_when_they_go_on(
    tmp_path: Path,
) -> None:
    need_hosts()
    with Cluster(2, tmp_path) as two:
        program = STUCK.replace("number == 20", "number < 0")
        options = ["--nnodes", "2", "--on-hang", "report", *PATIENT]
        job = start_all(two, write(tmp_path, program), tmp_path=tmp_path, options=options)
        workers = {worker.rank: worker for worker in job.wait_for_steps(0, 2, timeout_s=TORCH_S)}
        host = next(host for host in two if host.name == workers[1].host)
        stopped = host.pid_outside(workers[1].pid)
        os.kill(stopped, signal.SIGSTOP)
        assert job.wait_for_incident(timeout_s=TORCH_S)["verdict"]["kind"] == "stopped"
        assert any(told["stands_still"] for told in job.actions("record_incident"))
        led = next(host for host in two if job.on(host).controller_pids())
        os.kill(job.on(led).controller_pid(), signal.SIGKILL)
        job.wait_for_event("controller_resumed")
        job.wait_for_event("node_returned", 2)
        assert not job.actions("standstill_over"), "ranks still wait"
        os.kill(stopped, signal.SIGCONT)
        wait_for(lambda: job.actions("standstill_over"), f"ranks to go on:\n{job.said()}", TORCH_S)
        job.wait_for_more_steps(0, 2)
        assert len(job.actions("start_attempt")) == 1, "no attempt was ended"
        assert set(job.finish().values()) == {0}, job.said()
        course = CourseReader(str(job.run_dir / "journal.jsonl")).read_all()
        stood = course.attempts[0].standstills[0]
        assert stood.end_s is not None
        assert course.effective_s(course.last_s) <= course.ran_s(course.last_s) - (stood.end_s - stood.begin_s) + 0.01
        job.assert_nothing_left()
