"""A job that a schedule of faults strikes, and what must hold whatever it is.

    problem = try_out(drawn(random.Random("7/3")), folder)

Two ranks train with gloo; integers, so that their sums are exact in any order. Each rank holds a lock on a shared file for as
long as it lives, which is the witness that a rank never lives twice. In the end the weights are those of an undisturbed run,
computed here; no host was given up that nothing was done to; launchers of such hosts end with 0; nothing is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from busy import busy
from chaos import FOR_GOOD, HARMLESS, NODES, Schedule
from chaos_acts import CLOCK, Ground, Struck, strike
from clusters import STEPS, ClusterJob, Launcher, start_all, write
from hosts import Cluster
from jobs import wait_for

STARTED_S = 240.0
GOES_ON_S = 120.0
PER_LOAD_S = 6.0
"""A process of the load may cost a job so much more."""
BUSY = 10.0
"""At this load and above it a machine may be too slow for a lease: an attempt may be lost, the job may not."""
CAME = ("joined", "hosts the controller")
"""What a launcher says that has found the job."""
LEAVES = ("kill guard", "late joiner")
"""A node may have left in good order, or not have come yet, when another fault strikes."""
DISK_BYTES = 64 << 20
PRIME = 2**31 - 1
WIDTH = 32

TRAIN = f"""{STEPS}
    import fcntl

    import torch
    import torch.distributed as dist

    lock = open(f"{{STEPS_DIR}}/lock-{{RANK}}", "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        open(f"{{STEPS_DIR}}/twice-{{ATTEMPT}}-{{RANK}}-{{os.getpid()}}", "w").close()

    dist.init_process_group("gloo")
    head = torch.zeros(2, dtype=torch.int64)  # the number of steps, and whether it was the last
    weights = torch.arange(1, {WIDTH} + 1, dtype=torch.int64)
    saved = f"{{STEPS_DIR}}/weights.pt"
    if RANK == 0 and os.path.exists(saved):
        head[0], weights = torch.load(saved, weights_only=True)
    dist.broadcast(head, 0)
    dist.broadcast(weights, 0)
    while not head[1]:
        part = (weights * (RANK + 3) + head[0] * 7919) % {PRIME}
        dist.all_reduce(part)
        weights = (weights * 31 + part) % {PRIME}
        head[0] += 1
        head[1] = int(RANK == 0 and os.path.exists(DONE))
        dist.broadcast(head, 0)
        if RANK == 0 and (head[0] % 20 == 0 or head[1]):
            torch.save((head[0].clone(), weights), saved + ".part")
            os.replace(saved + ".part", saved)
        step()
        pause(0.02)
    with open(f"{{STEPS_DIR}}/final-{{RANK}}", "w") as file:
        print(int(head[0]), *weights.tolist(), file=file)
    dist.destroy_process_group()
"""


def undisturbed(steps: int) -> list[int]:
    """Return the weights after so many steps of all ranks."""
    weights = list(range(1, WIDTH + 1))
    for step in range(steps):
        for place, weight in enumerate(weights):
            part = sum((weight * (rank + 3) + step * 7919) % PRIME for rank in range(NODES))
            weights[place] = (weight * 31 + part) % PRIME
    return weights


def try_out(schedule: Schedule, folder: Path, *, admission: bool = True) -> str:
    """Carry it out; return what was wrong with what followed, empty if nothing was. `admission`: as `start_all` has it."""
    limit_s = STARTED_S + GOES_ON_S + schedule.load * PER_LOAD_S * 2
    with ExitStack() as stack:
        disk = stack.enter_context(_disk(folder / "disk"))
        cluster = stack.enter_context(Cluster(schedule.hosts, folder))
        place = _start(schedule, cluster, folder, disk, admission=admission)
        job = place.job
        struck: list[Struck] = []
        try:
            _wait_until_it_trains(job, STARTED_S)  # a starved start may have cost an attempt
            stack.enter_context(busy(schedule.load, limit_s + 120.0))
            _carry_out(schedule, place, struck)
            _check(schedule, job, struck)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"{error!s:.1500}\n{job.said()[-3000:]}"
        finally:
            job.kill_everything()
    return ""


def _start(schedule: Schedule, cluster: Cluster, folder: Path, disk: Path, *, admission: bool) -> Ground:
    options = ["--nnodes", str(NODES), "--standby", str(schedule.hosts - NODES), "--controller-standby", "2"]
    env: dict[str, str] = {}
    if any(fault.act == "clock jump" for fault in schedule.faults):
        env = _clocks(cluster, folder / "clocks")
    there = [host for host in cluster if host.index not in schedule.late]
    script = write(folder, TRAIN)
    job = start_all(cluster, script, tmp_path=folder, options=options, launch=[], env=env, admission=admission)
    job.argv = [str(disk) if word == str(job.log_dir) else word for word in job.argv]
    job.log_dir = disk
    place = Ground(cluster, job, disk, folder / "clocks")
    for host in there:
        place.join(host)
    return place


def _carry_out(schedule: Schedule, place: Ground, struck: list[Struck]) -> None:
    """Strike when it is time, and undo when that is: neither waits for the other's consequences."""
    begun_s = time.monotonic()
    todo = list(schedule.faults)
    undone: list[Struck] = []
    while todo or len(undone) < len(struck):
        now_s = time.monotonic()
        if todo and now_s >= begun_s + todo[0].at_s:
            struck.append(strike(todo.pop(0), place))
        for each in struck:
            if each not in undone and now_s >= each.undo_at_s:
                undone.append(each)
                each.undo()
        time.sleep(0.02)
    assert [each.fault for each in struck] == list(schedule.faults), "a fault did not strike"


def _check(schedule: Schedule, job: ClusterJob, struck: list[Struck]) -> None:
    goes_on_s = GOES_ON_S + schedule.load * PER_LOAD_S
    _wait_until_it_trains(job, goes_on_s)
    late = {f"node-{index}" for index in schedule.late}
    came = lambda: late <= {event["node"]["name"] for event in job.events("node_joined")}  # noqa: E731
    wait_for(came, f"the late joiner, which finds no job after its end:\n{job.said()}", goes_on_s)
    wait_for(
        lambda: all(map(_has_come, job.launchers)), "nodes that were started again, which find no job either", goes_on_s
    )
    load = max(schedule.load, os.getloadavg()[0])  # of other work, too
    codes = job.finish(goes_on_s)
    hit = {host.name for each in struck if each.fault.act not in HARMLESS for host in each.hosts}
    gone = {
        host.name for each in struck if each.fault.act in FOR_GOOD and not each.fault.lasts_s for host in each.hosts
    }
    bad = {name: code for name, code in codes.items() if code != 0 and name not in hit | gone}
    assert not bad, f"launchers of hosts that nothing was done to ended with {bad}"
    assert 0 in codes.values(), f"no launcher saw the job end well: {codes}"
    # Two nodes that cannot reach each other: neither can go on alone, and neither knows which of them is cut off.
    without_leader = any(each.cuts_leader and len(_others(schedule, each, struck)) < NODES for each in struck)
    without_disk = bool(hit) and any(each.fault.act == "full disk" for each in struck)  # candidates meet there
    if load < BUSY and not without_leader and not without_disk:
        acted_on = [
            each for each in job.incidents() if each["action"]["name"] != "report"
        ]  # a report names both ends of a cut
        lost = {node for incident in acted_on for node in incident["verdict"]["nodes"]}
        assert lost <= hit, f"{sorted(lost - hit)} lost, and nothing was done to them"
        assert hit or not job.incidents(), f"incidents of harmless faults: {job.incidents()!r:.500}"
    if not schedule.stops_both_fences:
        twice = sorted(path.name for path in job.steps_dir.glob("twice-*"))
        assert not twice, f"a rank lived twice (attempt, rank, pid): {twice}"
        job.assert_never_two_at_once()
    _assert_equal_weights(job)
    # Where guard and agent are killed at once, nobody is left to remove a folder: the next start on that host does.
    all_gone = {h.name for s in struck if s.fault.act == "kill launcher" and not s.fault.lasts_s for h in s.hosts}
    job.assert_nothing_left(host for host in job.hosts if host.name not in all_gone)


def _has_come(launcher: Launcher) -> bool:
    return launcher.process.poll() is not None or any(words in launcher.err for words in CAME)


def _others(schedule: Schedule, cut: Struck, struck: list[Struck]) -> set[str]:
    """Return the hosts that may go on without one that is cut off, as far as that one knows: those that did not leave."""
    away = {host.name for each in struck if each.fault.act in LEAVES for host in each.hosts}
    return {f"node-{index}" for index in range(schedule.hosts)} - away - {host.name for host in cut.hosts}


def _wait_until_it_trains(job: ClusterJob, limit_s: float) -> None:
    """Wait until all ranks of one attempt, whichever that is by then, have made more steps."""
    give_up_at_s = time.monotonic() + limit_s
    before = _steps(job)
    while True:
        now = _steps(job)
        grown = {key[0] for key in now if now[key] >= before.get(key, 0) + 3}
        if any(
            sum((a, r) in now and now[a, r] >= before.get((a, r), 0) + 3 for r in range(NODES)) == NODES for a in grown
        ):
            return
        assert time.monotonic() < give_up_at_s, f"the job did not train again within {limit_s:g} s"
        time.sleep(0.2)


def _steps(job: ClusterJob) -> dict[tuple[int, int], int]:
    return {(worker.attempt, worker.rank): len(worker.times) for worker in job.workers()}


def _assert_equal_weights(job: ClusterJob) -> None:
    finals = [[int(word) for word in (job.steps_dir / f"final-{rank}").read_text().split()] for rank in range(NODES)]
    assert all(final == finals[0] for final in finals), f"ranks ended differently: {finals}"
    steps, *weights = finals[0]
    assert weights == undisturbed(steps), f"the weights after {steps} steps are not those of an undisturbed run"


@contextmanager
def _disk(place: Path) -> Iterator[Path]:
    """A file system of its own, small enough to be filled."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _clocks(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Have hosts read their wall clock's shift from a file each; return the variables that all have."""
    folder.mkdir()
    for host in cluster:
        (folder / host.name).write_text("+0\n")
    (folder / "sitecustomize.py").write_text(CLOCK)
    return {"PYTHONPATH": str(folder)}
