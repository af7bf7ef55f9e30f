"""Real training on real hosts: collectives over the network, checkpoints, and a node that is gone from one moment to the next."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import ALL_REDUCE, PATIENT, STEPS, ClusterJob, no_warm, start_all, wait_for, write
from hosts import Cluster, need_hosts

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train_gpt.py"
TINY = ["--width", "32", "--layers", "1", "--heads", "2", "--block", "32", "--batch", "4", "--lr", "0.01"]
STEPS_TO_DO = 200
#: All nodes import torch at once, on a machine that is busy.
TORCH_S = 150.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(4, tmp_path) as cluster:
        yield cluster


def started(cluster: Cluster, tmp_path: Path, *script: str, options: tuple[str, ...] = (), **more: Any) -> ClusterJob:
    calm = ["--rdzv-conf", "keep_alive_max_attempt=6"]  # a busy machine may hold an agent up for a second and more
    options = ("--nnodes", "2", "--standby", "1", *calm, *options)
    return start_all(cluster, *script, tmp_path=tmp_path, options=options, **more)


def wait_for_warm_standbys(job: ClusterJob, count: int) -> None:
    """Wait until so many nodes have a worker that only needs its rank. One that made its first step has a new one made."""
    wait_for(
        lambda: len({event["node"] for event in job.events("standby_ready")} - {""}) >= count,
        f"standby workers on {count} nodes:\n{job.said()}",
        TORCH_S,
    )


def test_collectives_go_on_with_the_standby_after_a_power_loss(cluster: Cluster, tmp_path: Path) -> None:
    job = started(cluster, tmp_path, write(tmp_path, ALL_REDUCE), launch=list(cluster)[:3])
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    world = job.layout(0)  # the first two that came
    (standby,) = {"node-0", "node-1", "node-2"} - set(world)
    wait_for_warm_standbys(job, 3)
    lost = next(host for host in cluster if host.name == world[1])
    lost.power_off()
    incident = job.wait_for_incident()
    assert (incident["verdict"]["kind"], incident["verdict"]["nodes"]) == ("node_lost", [lost.name])
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    assert job.layout(1) == [world[0], standby]
    assert job.finish() == {world[0]: 0, lost.name: -9, standby: 0}
    rungs = [rung for event in job.events("attempt_started") if event["attempt"] == 1 for rung in event["how"]]
    assert rungs == ["promote", "promote"]
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_the_workers_store_moves_when_the_node_of_rank_0_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    # The controller is on node-2, which is rank 1, so that it survives.
    job = started(
        cluster,
        tmp_path,
        write(tmp_path, ALL_REDUCE),
        options=no_warm(),
        meet_at=cluster[2],
        launch=[cluster[2], cluster[0]],
    )
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    assert job.layout(0) == ["node-0", "node-2"]
    job.join(cluster[1])
    job.wait_for_event("node_joined", 3)
    cluster[0].power_off()
    incident = job.wait_for_incident()
    assert (incident["verdict"]["nodes"], incident["verdict"]["ranks"]) == (["node-0"], [0])
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    assert job.layout(1) == ["node-1", "node-2"]
    stores = [event["address"] for event in job.events("store_opened")]
    assert stores == [cluster[0].address, cluster[1].address]
    assert job.finish() == {"node-0": -9, "node-1": 0, "node-2": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


SAVES = f"""{STEPS}
    import torch
    import torch.distributed as dist

    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    dist.init_process_group("gloo")
    while not stopping:
        dist.all_reduce(torch.ones(1))
        step()
        pause(0.005)
    open(f"{{STEPS_DIR}}/saved-{{RANK}}", "w").close()
    os._exit(0)
"""


def test_survivors_that_wait_in_a_collective_and_handle_sigterm_do_not_hold_the_job_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    # Python runs no handler while C waits, so such a rank never sees SIGTERM: the grace has to end.
    job = started(cluster, tmp_path, write(tmp_path, SAVES), options=("--restart-grace", "1"), launch=list(cluster)[:3])
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    lost = next(host for host in cluster if host.name == job.layout(0)[1])
    lost.power_off()
    job.wait_for_incident()
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    for launcher in job.launchers:
        if launcher.host is not lost:
            launcher.process.signal(signal.SIGTERM)
    assert set(job.wait_ended().values()) == {-9, 143}
    assert not job.layout(2)
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_power_loss_does_not_change_a_bit_of_the_weights(cluster: Cluster, tmp_path: Path) -> None:
    # Not in a work tree: a busy machine may find that too large on one node and not on the other, and they would disagree.
    (tmp_path / "code").mkdir()
    program = shutil.copy(EXAMPLE, tmp_path / "code")

    def command(name: str) -> list[str]:
        (tmp_path / name).mkdir()
        out = ["--out", str(tmp_path / name), "--steps", str(STEPS_TO_DO), "--checkpoint-every", "20"]
        return [str(program), *TINY, *out]

    def final(name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((tmp_path / name / "final.json").read_text())
        return content

    disturbed = started(cluster, tmp_path, *command("disturbed"), launch=[cluster[0], cluster[1], cluster[2]])
    wait_for(lambda: len(list((tmp_path / "disturbed").glob("step-*.pt"))) >= 2, f"checkpoints:\n{disturbed.said()}")
    lost = next(host for host in cluster if host.name == disturbed.layout(0)[1])
    lost.power_off()
    disturbed.wait_for_incident()
    # Meanwhile nobody has disturbed the other one.
    codes = disturbed.wait_ended(TORCH_S)
    assert codes == {host.name: -9 if host is lost else 0 for host in list(cluster)[:3]}
    assert "resumed from step " in "".join(launcher.process.out for launcher in disturbed.launchers)
    there = [host for host in cluster if host is not lost][:2]
    undisturbed = start_all(
        there,
        *command("undisturbed"),
        tmp_path=tmp_path,
        options=["--nnodes", "2", *no_warm(), *PATIENT],
        meet_at=there[0],
    )
    assert set(undisturbed.wait_ended(TORCH_S).values()) == {0}
    assert not undisturbed.incidents() and len(disturbed.incidents()) == 1
    assert final("disturbed") == final("undisturbed")
    assert final("disturbed")["step"] == STEPS_TO_DO
    disturbed.assert_nothing_left()
