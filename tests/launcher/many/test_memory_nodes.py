"""Nodes that keep memory without copies: all start from one step, and memory that is gone with its node is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import STEPS, ClusterJob, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for

OPTIONS = [
    "--nnodes", "2", "--no-warm", "--ckpt-copies", "0", "--restart-grace", "0.3", "--rdzv-conf", "keep_alive_max_attempt=20",
]  # fmt: skip

#: Saves each step in memory, and starts where it is told to. A file `fail` ends rank 0's attempt.
TRAIN = f"""{STEPS}
    from robust_run.ckpt_io.memory import segment  # what robust_run.checkpoint saves with
    from robust_run.ckpt_io.memory.client import MemoryClient, Skipped

    client = MemoryClient.connect(
        os.environ["ROBUST_CKPT_MEMORY"], rank=RANK, world_size=2, attempt=ATTEMPT, timeout_s=60.0
    )
    told, number = os.environ.get("ROBUST_RESUME", ""), 0
    if told:
        attempt, number = map(int, told.removeprefix("rrck+memory://").split("/"))
        with client.fetch(attempt, number) as part:
            values = segment.read(part.view, part.used_bytes, part.digest).values
            assert values == b"%d of %d" % (number, RANK), values
    with open(f"{{STEPS_DIR}}/told.{{ATTEMPT}}.{{RANK}}.part", "w") as file:
        file.write(str(number))
    os.rename(file.name, f"{{STEPS_DIR}}/told.{{ATTEMPT}}.{{RANK}}")
    while not os.path.exists(DONE):
        number += 1
        layout = segment.layout([], b"%d of %d" % (number, RANK))
        while isinstance(buffer := client.begin(number, 1 << 20), Skipped):  # nothing here takes as long as a digest
            pause(0.01)
        segment.write_head(buffer.view, layout, ATTEMPT, number, RANK, 2)
        client.copied(buffer, layout.used_bytes)
        step()
        while not os.path.exists(DONE) and number > 5:
            if RANK == 0 and os.path.exists(f"{{STEPS_DIR}}/fail.{{ATTEMPT}}"):
                os.kill(os.getpid(), signal.SIGKILL)
            pause(0.01)
"""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        yield cluster


def told(job: ClusterJob, attempt: int) -> list[int]:
    """The step that each rank started from."""
    paths = [job.steps_dir / f"told.{attempt}.{rank}" for rank in range(2)]
    wait_for(lambda: all(path.exists() for path in paths), f"the ranks of attempt {attempt}:\n{job.said()}")
    return [int(path.read_text()) for path in paths]


def fail(job: ClusterJob, attempt: int) -> None:
    (job.steps_dir / f"fail.{attempt}").touch()


def test_all_start_from_one_step_until_a_node_is_lost_with_what_it_held(three: Cluster, tmp_path: Path) -> None:
    job = start_all(three, write(tmp_path, TRAIN), tmp_path=tmp_path, options=[*OPTIONS, "--standby", "1"])
    job.wait_for_steps(0, 2, 6)
    assert told(job, 0) == [0, 0]
    fail(job, 0)
    assert told(job, 1) == [6, 6], job.said()
    assert "attempt 1 starts at step 6 from memory" in job.said()
    job.wait_for_steps(1, 2, 1)
    world = job.layout(1)
    lost = next(host for host in three if host.name == world[1])
    job.on(lost).kill()
    assert told(job, 2) == [0, 0]
    event = job.events("resume_chosen")[-1]
    assert (event["attempt"], event["source"]) == (2, "")
    assert f"{lost.name}, which held a part of it, is gone" in event["passed_over"][0]["why"]
    assert "attempt 2 starts at step 0, as step " in job.said()
    job.finish()
    wait_for(lambda: not job.left_on(lost), "the keeper to go with its agent and guard")
    job.assert_nothing_left([host for host in three if host is not lost])
