"""A job of three roles that a schedule of faults strikes, and what must hold whatever it is.

    problem = try_out(drawn(random.Random("roles/7/3"), 3), folder)

Each fault is seen to have struck, and what it struck to come back where it could not go on. In the end: all numbers that were
asked for were answered and counted once, none twice and none lost, along the history of the checkpoint that the job ended with;
synchronous weights are those of an undisturbed run, computed here; a trainer that nothing was done to is one process from the
first step to the last; nothing is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from hosts import Cluster, Host
from jobs import Job, running, wait_for
from role_jobs import RoleJob
from roles_chaos import MEMBERS, Fault, Schedule
from roles_program import IN_FLIGHT, ROUND, weights_after

from robust_run.orchestrator.queue.book import recovered
from robust_run.roles.queue_words import QueueLimits

STARTED_S = 180.0
HEALED_S = 240.0
MORE_STEPS = 5
"""The job must have made so many after all faults."""
PORT = 29577
PROGRAM = Path(__file__).with_name("roles_program.py")
ROLE = """
[roles.{name}]
command = {command}
members = {members}
restart = "{restart}"
max_restarts = 100
{more}
"""
MORE = {"trainer": 'ends = "job"\nready = "called"', "rollout": "fewest = 1"}


class Ground:
    """A job that runs, and what a fault needs to find in it."""

    def __init__(self, folder: Path, jobs: Sequence[Job], cluster: Cluster | None) -> None:
        """`jobs`: a launcher of each node, the one that leads first."""
        self.folder, self.jobs, self.cluster = folder, jobs, cluster
        self.job = RoleJob(jobs[0], folder)

    @property
    def step(self) -> int:
        """Steps of the trainer, as far as it is now."""
        path = self.folder / "trained"
        return int(path.read_text()) if path.exists() else 0

    def starts(self, member: str) -> set[str]:
        """Return all starts of a member so far, by launcher and attempt."""
        return set(self.job.ran(member))

    def host_of(self, member: str) -> Host | None:
        """Return where a member runs now; None: there is one node."""
        if self.cluster is None:
            return None
        role, _, index = member.rpartition("-")
        started = [
            action["nodes"][0]
            for line in self.job.journal()
            for action in line.get("actions", ())
            if action["type"] == "start_member" and action["member"] == {"role": role, "index": int(index)}
        ]
        return next(host for host in self.cluster if host.name == started[-1])

    def worker(self, member: str) -> int:
        """Return the pid of a member's newest worker, as it is here."""
        host = self.host_of(member)
        return wait_for(lambda: _lives(self._pid(member, host)), f"a worker of {member} that lives")

    def _pid(self, member: str, host: Host | None) -> int:
        pid = self.job.newest(member)
        try:
            return pid if host is None else host.pid_outside(pid)
        except LookupError:
            return 0

    def launcher(self, member: str) -> int:
        """Return the pid of a member's launcher."""
        host = self.host_of(member)
        return RoleJob(self.jobs[host.index if host else 0], self.folder).launcher(member)

    def leader(self, job: Job) -> int:
        """Return the pid of what leads, or follows, below a node's guard."""
        return RoleJob(job, self.folder).leader()


def _lives(pid: int) -> int:
    try:
        return pid if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX" else 0
    except OSError:
        return 0


def try_out(schedule: Schedule, folder: Path) -> str:
    """Carry it out; return what was wrong with what followed, empty if nothing was."""
    with ExitStack() as stack:
        place = stack.enter_context(_on_hosts(schedule, folder) if schedule.hosts else _here(schedule, folder))
        try:
            wait_for(lambda: place.step >= 3, "the first steps", STARTED_S)
            wait_for(lambda: all(place.starts(name) for name in _members()), "all members", STARTED_S)
            _carry_out(schedule, place)
            (folder / "over").touch()
            codes = [job.finish() for job in _that_end(schedule, place)]
            assert codes == [0] * len(codes), f"launchers ended with {codes}"
            _check(schedule, place)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"{error!s:.1500}\n{_said(place)}"
    return ""


def _members() -> list[str]:
    return [f"{role}-{index}" for role, count in MEMBERS.items() for index in range(count)]


def _said(place: Ground) -> str:
    found = "\n".join(_stands(place))
    for job in place.jobs:
        if job.process.poll() is None:
            job.process.kill()
    parts = []
    for job in place.jobs:
        try:
            job.finish(10.0)
        except (subprocess.TimeoutExpired, ValueError):
            continue
        parts.append(job.err[-3000:])
    return "\n".join([found, *parts])


def _stands(place: Ground) -> Iterator[str]:
    """Say where all is now: who has what of each queue, what the trainer has written, where each worker is."""
    for name in ("trained", "weights", "saved"):
        with suppress(OSError):
            yield f"{name}: {(place.folder / name).read_text()[:300]}"
    for path in sorted(place.folder.glob("**/*.queue")):
        with suppress(OSError):
            state, _ = recovered(path.read_bytes(), QueueLimits())
            held = [f"{n} {each.standing} {each.consumer} {each.item.key}" for n, each in state.held.items()]
            yield f"{path.name}: {[each for each in held if ' kept ' not in each][:40]}, counts {state.counts}"
    for member in _members():
        with suppress(Exception):
            pid = place.worker(member)
            argv = [str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", str(pid)]
            yield f"{member}: {subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout[:1500]}"


def _that_end(schedule: Schedule, place: Ground) -> list[Job]:
    """Return the launchers that come to the job's end: those of a node without power do not."""
    off = (
        {place.cluster[i].name for i in range(schedule.hosts) if not place.cluster[i].is_on} if place.cluster else set()
    )
    return [job for index, job in enumerate(place.jobs) if f"node-{index}" not in off]


# The job


def write_file_of_roles(schedule: Schedule, folder: Path) -> Path:
    """Write the job's file of roles."""
    mode = "synchronous" if schedule.synchronous else "asynchronous"
    text = f"lease_s = {schedule.lease_s}\n"
    for name in schedule.order:
        restart = "together" if name == "trainer" else "alone"
        command = json.dumps([str(PROGRAM), mode])
        more = MORE.get(name, "")
        text += ROLE.format(name=name, command=command, members=MEMBERS[name], restart=restart, more=more)
    path = folder / "roles.toml"
    path.write_text(text)
    return path


@contextmanager
def _here(schedule: Schedule, folder: Path) -> Iterator[Ground]:
    with running(folder, "--roles", str(write_file_of_roles(schedule, folder))) as job:
        yield Ground(folder, [job], None)


@contextmanager
def _on_hosts(schedule: Schedule, folder: Path) -> Iterator[Ground]:
    path = write_file_of_roles(schedule, folder)
    with Cluster(schedule.hosts, folder) as cluster:
        meets = ["--nnodes", str(schedule.hosts), "--rdzv-backend", "c10d", "--rdzv-id", "r"]
        meets += ["--rdzv-endpoint", f"{cluster[0].address}:{PORT}"]
        env = {"ROBUST_TOKEN": "c" * 40}
        mark = f"t{uuid.uuid4().hex[:12]}"
        jobs: list[Job] = []
        for host in cluster:
            argv = ["--roles", str(path), *meets, "--node-name", host.name]
            jobs.append(host.job(f"{mark}-{host.index}", folder / "runs", *argv, env=env))
            if host.index == 0:
                wait_for(lambda: list(folder.glob("runs/*/roles.place")), "node-0 to lead", STARTED_S)
        yield Ground(folder, jobs, cluster)


# The faults


def _carry_out(schedule: Schedule, place: Ground) -> None:
    """Strike when it is time; then wait until all that was struck has come back, and the job has gone on."""
    begun_s = time.monotonic()
    healed: list[tuple[str, Callable[[], Any]]] = []
    undo: list[tuple[float, Callable[[], None]]] = []
    for fault in schedule.faults:
        while (left_s := begun_s + fault.at_s - time.monotonic()) > 0:
            _undo(undo)
            time.sleep(min(left_s, 0.05))
        healed.append((fault.name, _strike(fault, schedule, place, undo)))
    for name, is_healed in healed:

        def looked(is_healed: Callable[[], Any] = is_healed) -> Any:
            _undo(undo)
            return is_healed()

        wait_for(looked, f"what was struck to come back: {name}", HEALED_S)
    while undo:
        _undo(undo)
        time.sleep(0.05)
    after = place.step
    wait_for(lambda: place.step >= after + MORE_STEPS, f"steps after {after}", HEALED_S)


def _undo(undo: list[tuple[float, Callable[[], None]]]) -> None:
    for each in [each for each in undo if time.monotonic() >= each[0]]:
        undo.remove(each)
        each[1]()


def _strike(
    fault: Fault, schedule: Schedule, place: Ground, undo: list[tuple[float, Callable[[], None]]]
) -> Callable[[], Any]:
    """Do it, and see that it struck; return what is true once what it struck is well again."""
    if fault.act == "kill leader":
        return _kill_and_see_another(place, place.jobs[0])
    if fault.act == "kill follower":
        host = place.host_of(fault.member)
        assert host is not None
        return _kill_and_see_another(place, place.jobs[host.index])
    if fault.act in ("power", "cut"):
        return _strike_host(fault, place, undo)
    before, step = place.starts(fault.member), place.step
    if fault.act == "sleep":
        index = fault.member.rpartition("-")[2]
        (place.folder / f"sleep-{index}").touch()
        place.jobs[0].wait_for_file(f"sleeps-{index}", place.folder)
        return lambda: place.step >= step + 2 * IN_FLIGHT // ROUND
    pid = place.worker(fault.member)
    before = place.starts(fault.member)
    if fault.act == "kill launcher":
        os.kill(place.launcher(fault.member), signal.SIGKILL)
    elif fault.act == "kill worker":
        os.kill(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it to be stopped")
        if fault.role == "rollout" and not schedule.keeps_leases:
            return lambda: place.step >= step + 2 * IN_FLIGHT // ROUND  # the other does its work
    wait_for(lambda: not _lives(pid) or fault.act == "stop worker", f"{fault.name}: the worker to be gone")
    return lambda: place.starts(fault.member) - before


def _kill_and_see_another(place: Ground, job: Job) -> Callable[[], Any]:
    pid = place.leader(job)
    os.kill(pid, signal.SIGKILL)
    return lambda: place.leader(job) != pid


def _strike_host(fault: Fault, place: Ground, undo: list[tuple[float, Callable[[], None]]]) -> Callable[[], Any]:
    host, step = place.host_of(fault.member), place.step
    assert host is not None
    assert host.index, "the node that leads is not struck here"
    before = place.starts(fault.member)
    if fault.act == "power":
        host.power_off()
        assert not host.is_on
    else:
        host.cut()
        undo.append((time.monotonic() + fault.lasts_s, host.heal))
    if fault.needs_a_new_worker:
        return lambda: place.starts(fault.member) - before
    return lambda: place.step >= step + MORE_STEPS


# What must hold


def _check(schedule: Schedule, place: Ground) -> None:
    step, weights, history, asked, refused = json.loads((place.folder / "final").read_text())
    twice = len(history) - len(set(history))
    assert not twice, f"{twice} numbers were trained on twice"
    missing = sorted(set(range(asked)) - set(history))
    if schedule.synchronous:
        assert not missing, f"{missing} of {asked} were lost"
        assert weights == weights_after(step), f"other weights than those of an undisturbed run of {step} steps"
    else:
        on_their_way = asked - len(history) - refused
        assert 0 <= on_their_way <= IN_FLIGHT, (
            f"{on_their_way} of {asked} are neither settled nor refused: {missing[:50]}"
        )
    if schedule.spares_the_trainer:
        assert place.starts("trainer-0") == {"1.0"}, f"the trainer ran as {place.starts('trainer-0')}"
    for job in _that_end(schedule, place):
        job.assert_nothing_left()
