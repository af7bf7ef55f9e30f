"""ByteRobust's example (5.1) as a real job: tensor, pipeline and data parallel ranks, of which one pipeline stands still.

One rank's communication library goes deaf: what peers send is acknowledged by its kernel and never read. All have come to the
calls that stall, no connection repeats anything, and all wait. What is left are stacks: those of one pipeline differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
from clusters import PATIENT, STEPS, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for
from small_optimizer import SGD

#: Seven hosts start at once, on a machine that is busy.
START_S = 400.0
#: 3 replicas of 2 stages of 2 tensor parallel ranks: a machine has both ranks of a stage, replica 2 is on machines 4 and 5.
STAGES, TENSOR, REPLICAS = 2, 2, 3
STUCK = 8

pytestmark = pytest.mark.timeout(600)

PIPELINES = f"""{STEPS}
    import torch, torch.distributed as dist
    from datetime import timedelta
    from pathlib import Path
{indent(SGD, "    ")}

    STAGES, TENSOR, REPLICAS = {STAGES}, {TENSOR}, {REPLICAS}
    torch.set_num_threads(1)
    BAD = Path(STEPS_DIR) / "bad"  # the name of the host whose first rank goes deaf, in any attempt


    def deaf():
        # Takes gloo's connections from what its thread listens to.
        for number in os.listdir("/proc/self/fd"):
            try:
                is_epoll = os.readlink(f"/proc/self/fd/{{number}}") == "anon_inode:[eventpoll]"
            except OSError:
                continue
            if is_epoll:
                lines = Path(f"/proc/self/fdinfo/{{number}}").read_text().splitlines()
                watched = [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
                poll = select.epoll.fromfd(os.dup(int(number)))
                for each in watched:
                    if os.readlink(f"/proc/self/fd/{{each}}").startswith("socket:"):
                        poll.unregister(each)
                        BAD.write_text(socket.gethostname())


    def is_bad():
        if RANK == {STUCK} and ATTEMPT == 0:
            return True
        return BAD.exists() and BAD.read_text() == socket.gethostname() and os.environ["LOCAL_RANK"] == "0"


    def forward(layer, data):
        if stage:
            dist.recv(data, src=RANK - TENSOR)
        out = layer(data)
        dist.all_reduce(out.detach().clone(), group=tensor)
        if stage < STAGES - 1:
            dist.send(out.detach(), dst=RANK + TENSOR)
        return out


    def flush():
        dist.all_reduce(torch.ones(1), group=pipeline)


    dist.init_process_group("gloo", timeout=timedelta(seconds=900))
    of = [[(r * STAGES + s) * TENSOR + t for t in range(TENSOR)] for r in range(REPLICAS) for s in range(STAGES)]
    tensor, _ = dist.new_subgroups_by_enumeration(of, group_desc="TP")
    of = [[(r * STAGES + s) * TENSOR + t for s in range(STAGES)] for r in range(REPLICAS) for t in range(TENSOR)]
    pipeline, _ = dist.new_subgroups_by_enumeration(of, group_desc="PP")
    of = [[(r * STAGES + s) * TENSOR + t for r in range(REPLICAS)] for s in range(STAGES) for t in range(TENSOR)]
    data, _ = dist.new_subgroups_by_enumeration(of, group_desc="DP")
    stage = RANK // TENSOR % STAGES
    layer = torch.nn.Linear(4, 4)
    optimizer = SGD(layer.parameters(), lr=0.01)
    for number in range(100000):
        forward(layer, torch.ones(4)).sum().backward()
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad, group=data)
        if number == 5 and is_bad():
            deaf()
        norm = torch.tensor([float(os.path.exists(DONE))])
        of_all = dist.all_reduce(norm, async_op=True)  # while it is on its way the pipelines are drained
        flush()
        of_all.wait()
        optimizer.step()
        step()
        if norm.item():
            break
        pause(0.1)
    dist.destroy_process_group()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(STAGES * REPLICAS + 1, tmp_path) as cluster:
        yield cluster


def test_of_a_pipeline_that_stands_still_as_many_machines_go_as_standbys_cover_and_the_rest_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    options = ["--nnodes", str(STAGES * REPLICAS), "--standby", "1", "--nproc-per-node", str(TENSOR), *PATIENT]
    options += ["--hang-patience", "15", "--max-evict-share", "0.5", "--no-sensors", "--trace-nccl", "off"]
    job = start_all(cluster, write(tmp_path, PIPELINES), tmp_path=tmp_path, options=options)
    job.wait_for_steps(0, STAGES * REPLICAS * TENSOR, timeout_s=START_S)
    world = job.layout(0)
    (standby,) = {host.name for host in cluster} - set(world)
    (incident,) = wait_for(
        lambda: [each for each in job.incidents() if each["action"]["name"] != "report"],
        f"it to be more than told:\n{job.said()}",
        START_S,
    )
    job.wait_for_steps(1, STAGES * REPLICAS * TENSOR, 8, timeout_s=START_S)
    bad, other = world[STUCK // TENSOR], world[STUCK // TENSOR + 1]
    (host,) = Path(job.steps_dir).glob("bad")
    assert host.read_text() == bad, "the fault fired"

    verdict, action = incident["verdict"], incident["action"]
    assert (verdict["kind"], verdict["rule"]) == ("comm_stall", "all_arrived")
    # The sum over all ranks stands still for the pipeline's call or with it: whichever is seen first.
    assert verdict["group"] in ("the world", f"group PP (ranks {STUCK},{STUCK + TENSOR})")
    assert verdict["ranks"] == verdict["over_evicted"] == [STUCK, STUCK + TENSOR], "the pipeline, and no less"
    assert verdict["nodes"] == [bad, other]
    assert action["name"] == "evict"
    (weighed,) = [each["text"] for each in incident["evidence"] if "suspects are covered" in each["text"]]
    assert "1 of 2 suspects are covered by other nodes; for the rest: to go on with them costs" in weighed
    assert [each["name"] for each in job.actions("host_evicted")] == [bad]
    assert job.layout(1) == [*world[: STUCK // TENSOR], standby, other], "the rest of the pipeline is where it was"
    assert set(job.finish().values()) == {0}, job.said()
    job.assert_never_two_at_once()
    job.assert_nothing_left()
