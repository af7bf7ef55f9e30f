"""A job on real hosts that lose power, their cable, their agent or their mind: it goes on, and never twice at a time."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clusters import PATIENCE_S, STEPS, TRAIN, ClusterJob, children, outside, reaches, start_all, wait_for, write
from hosts import Cluster, Host, need_hosts

from robust_run.launcher.agent.workers.process_tree import read_status
from robust_run.launcher.model.lease_times import MARGIN_S

START = Callable[..., tuple[Cluster, ClusterJob]]
LEASE_S = 7
"""More than is usual: a busy machine may hold an agent up for some seconds, above all while it starts workers."""


def lease(length_s: int) -> tuple[str, str]:
    """Return the options for heartbeats each second and a lease of this length."""
    return "--rdzv-conf", f"keep_alive_max_attempt={length_s}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[START]:
    """Start a job on the first hosts of a new cluster; the other hosts join later. Shows what it said, for a failed test."""
    need_hosts()
    with ExitStack() as stack:

        def started(
            hosts: int, at_first: int, *options: str, text: str = TRAIN, ranks: int | None = None, **more: object
        ) -> tuple[Cluster, ClusterJob]:
            cluster = stack.enter_context(Cluster(hosts, tmp_path, **more))  # type: ignore[arg-type]
            job = start_all(
                cluster,
                write(tmp_path, text),
                tmp_path=tmp_path,
                options=["--no-warm", *lease(LEASE_S), *options],
                launch=list(cluster)[:at_first],
            )
            stack.callback(lambda: print(job.said()))
            job.wait_for_steps(0, at_first if ranks is None else ranks)
            for host in list(cluster)[at_first:]:
                if "--standby" in options:
                    join(job, host)
            return cluster, job

        yield started


def join(job: ClusterJob, host: Host) -> None:
    """Start a launcher on a host, and wait until it is in."""
    known = len(job.events("node_joined"))
    job.join(host)
    job.wait_for_event("node_joined", known + 1)


def assert_lost(incident: dict[str, object], *hosts: Host, ranks: list[int]) -> None:
    """The verdict names these hosts and their ranks, and the job goes on without them."""
    verdict, action = incident["verdict"], incident["action"]
    assert isinstance(verdict, dict) and isinstance(action, dict)
    assert (incident["symptom"], verdict["kind"], action["name"]) == ("node_lost", "node_lost", "evict")
    assert sorted(verdict["nodes"]) == sorted(host.name for host in hosts)
    assert verdict["ranks"] == ranks


def names(*hosts: Host) -> list[str]:
    return [host.name for host in hosts]


# --- power ------------------------------------------------------------------------------------------------------------


def test_a_standby_takes_the_place_of_a_node_that_lost_power(start: START) -> None:
    cluster, job = start(4, 3, "--nnodes", "3", "--standby", "1")
    assert job.layout(0) == names(cluster[0], cluster[1], cluster[2])
    cluster[1].power_off()
    incident = job.wait_for_incident()
    assert_lost(incident, cluster[1], ranks=[1])
    assert incident["action"]["reason"] == "node-3 takes over"
    job.wait_for_steps(1, 3)
    assert job.layout(1) == names(cluster[0], cluster[3], cluster[2])  # survivors keep their ranks
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": 0, "node-3": 0}
    assert len(job.incidents()) == 1
    # A connection that is half open says nothing: silence was all there was.
    assert [event["silent_s"] >= LEASE_S + MARGIN_S for event in job.events("node_lost")] == [True]
    noted = job.run_dir / "controller.log"
    said = noted.read_text().splitlines() if noted.exists() else []
    assert all("by how late machines are" in line for line in said), said
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_rebooted_node_joins_again_and_is_used_at_the_next_loss(start: START) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    cluster[1].reboot()
    assert not job.left_on(cluster[1])
    assert_lost(job.wait_for_incident(), cluster[1], ranks=[1])
    job.wait_for_steps(1, 2)
    join(job, cluster[1])
    cluster[2].power_off()
    assert_lost(job.wait_for_incident(2), cluster[2], ranks=[1])
    job.wait_for_steps(2, 2)
    assert [job.layout(attempt) for attempt in (1, 2)] == [names(cluster[0], cluster[2]), names(cluster[0], cluster[1])]
    assert job.finish() == {"node-0": 0, "node-1": 0, "node-2": -9}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_node_that_is_back_before_it_is_missed_is_not_taken_for_itself(start: START) -> None:
    cluster, job = start(2, 2, "--nnodes", "2", *lease(15))
    cluster[1].reboot()
    join(job, cluster[1])  # within the lease of its former life
    assert not job.events("node_lost")
    assert_lost(job.wait_for_incident(), cluster[1], ranks=[1])
    job.wait_for_steps(1, 2)
    assert job.layout(1) == names(cluster[0], cluster[1])
    assert job.finish() == {"node-0": 0, "node-1": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_two_nodes_lost_at_once_are_one_incident(start: START) -> None:
    cluster, job = start(5, 3, "--nnodes", "3", "--standby", "2")
    cluster[1].power_off()
    cluster[2].power_off()
    assert_lost(job.wait_for_incident(), cluster[1], cluster[2], ranks=[1, 2])
    job.wait_for_steps(1, 3)
    assert job.layout(1) == names(cluster[0], cluster[3], cluster[4])
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": -9, "node-3": 0, "node-4": 0}
    assert len(job.incidents()) == 1
    job.assert_never_two_at_once()
    job.assert_nothing_left()


STUBBORN = f"""{STEPS}
    signal.signal(signal.SIGTERM, lambda *_: step())
    while not os.path.exists(DONE):
        step()
        pause(0.005)
"""


def test_a_second_node_lost_while_the_first_loss_is_handled(start: START) -> None:
    cluster, job = start(5, 3, "--nnodes", "3", "--standby", "2", "--restart-grace", "8", text=STUBBORN)
    cluster[1].power_off()
    wait_for(lambda: job.actions("end_attempt"), "the first loss to be seen", PATIENCE_S)
    cluster[2].power_off()  # its workers had eight seconds to end
    assert not job.actions("record_incident")
    assert_lost(job.wait_for_incident(), cluster[1], cluster[2], ranks=[1, 2])
    job.wait_for_steps(1, 3)
    assert job.layout(1) == names(cluster[0], cluster[3], cluster[4])
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": -9, "node-3": 0, "node-4": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_standby_that_dies_as_it_is_promoted_is_replaced_by_the_next(start: START) -> None:
    cluster, job = start(4, 2, "--nnodes", "2", "--standby", "2")
    cluster[1].power_off()
    wait_for(lambda: len(job.actions("open_store")) == 2, "the order for attempt 1", PATIENCE_S)
    cluster[2].power_off()
    assert_lost(job.wait_for_incident(2), cluster[2], ranks=[1])
    job.wait_for_steps(2, 2)
    assert [job.layout(attempt) for attempt in (1, 2)] == [names(cluster[0], cluster[2]), names(cluster[0], cluster[3])]
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": -9, "node-3": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


# --- cable ------------------------------------------------------------------------------------------------------------


FENCED = re.compile(r"no answer from the controller for (\d+\.\d) s: ending this node's workers")


@pytest.mark.parametrize("way", ["both", "from it", "to it"])
def test_a_node_that_is_cut_off_ends_its_workers_before_they_are_replaced(start: START, way: str) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    if way == "both":
        cluster[1].cut()
    elif way == "from it":
        cluster[1].cut_from(cluster[0], one_way=True)
    else:
        cluster[0].cut_from(cluster[1], one_way=True)
    assert not reaches(cluster[1], cluster[0])
    assert_lost(job.wait_for_incident(), cluster[1], ranks=[1])
    job.wait_for_steps(1, 2)
    assert float(FENCED.findall(job.on(cluster[1]).err)[0]) >= LEASE_S
    ended = job.wait_for_steps(0, 2)[1]
    wait_for(lambda: not outside(cluster[1], ended.pid), "its worker to be reaped", PATIENCE_S)
    (cluster[0] if way == "to it" else cluster[1]).heal()
    job.wait_for_event("node_returned")
    assert job.layout(1) == names(cluster[0], cluster[2])
    assert job.steps_on(cluster[1]) == len(job.wait_for_steps(0, 2)[1].times)
    assert job.finish() == {"node-0": 0, "node-1": 0, "node-2": 0}
    assert len(job.incidents()) == 1
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_node_that_was_cut_off_stands_by_for_the_next_loss(start: START) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    cluster[1].cut()
    assert_lost(job.wait_for_incident(), cluster[1], ranks=[1])
    cluster[1].heal()
    job.wait_for_event("node_returned")
    job.wait_for_steps(1, 2)
    cluster[2].power_off()
    assert_lost(job.wait_for_incident(2), cluster[2], ranks=[1])
    job.wait_for_steps(2, 2)
    assert job.layout(2) == names(cluster[0], cluster[1])
    assert job.finish() == {"node-0": 0, "node-1": 0, "node-2": -9}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_cable_that_is_back_within_the_lease_was_never_out(start: START) -> None:
    cluster, job = start(2, 2, "--nnodes", "2", *lease(9))
    for pause_s in (0.0, 0.3, 0.3):  # wherever between two heartbeats it begins
        time.sleep(pause_s)
        cut_at_s = time.monotonic()
        cluster[1].cut_from(
            cluster[0]
        )  # somewhere on the way: a kernel that sees its own card go down tries again sooner
        assert not reaches(cluster[1], cluster[0], timeout_s=0.2)
        time.sleep(max(cut_at_s + 1.2 - time.monotonic(), 0))  # the fault is the time it lasts
        cluster[1].heal()
        wait_for(lambda: reaches(cluster[1], cluster[0]), "the cable")
        time.sleep(1.0)  # the next heartbeat
    # So long after, the lease would have been over, and the node lost.
    wait_for(lambda: min(w.times[-1] for w in job.workers()) > cut_at_s + 10.5, f"steps:\n{job.said()}", PATIENCE_S)
    assert job.finish() == {"node-0": 0, "node-1": 0}
    assert not job.incidents() and not job.events("node_lost") and not job.layout(1)
    job.assert_nothing_left()


# --- processes ----------------------------------------------------------------------------------------------------------


def test_the_guard_ends_the_workers_of_an_agent_that_stands_still(start: START) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    launcher = job.on(cluster[1])
    os.kill(launcher.agent_pid(), signal.SIGSTOP)
    before = job.steps_on(cluster[1])
    wait_for(lambda: job.steps_on(cluster[1]) > before + 20, "its workers to go on without it")
    assert_lost(job.wait_for_incident(), cluster[1], ranks=[1])
    job.wait_for_steps(1, 2)
    assert "did not answer when its lease was over; its workers were ended" in launcher.err
    worker = next(each for each in job.workers() if (each.attempt, each.host) == (0, "node-1"))
    status = read_status(outside(cluster[1], worker.pid))
    assert status is None or status.is_gone, "its agent, which stands still, has yet to collect it"
    os.kill(launcher.agent_pid(), signal.SIGCONT)
    job.wait_for_event("node_returned")
    assert job.finish() == {"node-0": 0, "node-1": 0, "node-2": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_node_that_was_cut_off_when_its_job_ended_goes_home(start: START) -> None:
    cluster, job = start(2, 2, "--nnodes", "1:2")
    cluster[1].cut()
    job.wait_for_steps(1, 1)
    assert set(job.finish().values()) == {0}, "it reads the end in the run directory, and waits for nobody"
    assert "the job ended while this node could not reach it" in job.on(cluster[1]).err
    job.assert_nothing_left()


def test_a_stall_of_all_agents_and_the_controller_at_once_costs_an_attempt_and_not_the_job(start: START) -> None:
    # What a starved machine does to all nodes of a job at the same time. Only the guards are awake.
    cluster, job = start(2, 2, "--nnodes", "2", "--max-restarts", "0", *lease(3))
    stopped = [job.on(host).agent_pid() for host in cluster] + job.on(cluster[0]).controller_pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    said = "did not answer when its lease was over; its workers were ended"
    for host in cluster:
        wait_for(lambda host=host: said in job.on(host).err, f"the guard of {host.name}", PATIENCE_S)  # type: ignore[misc]
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    job.wait_for_steps(1, 2)
    assert job.finish() == {"node-0": 0, "node-1": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_an_agent_that_stands_still_for_less_than_the_lease_is_not_missed(start: START) -> None:
    cluster, job = start(2, 2, "--nnodes", "2", *lease(9))
    agent = job.on(cluster[1]).agent_pid()
    os.kill(agent, signal.SIGSTOP)
    stopped_at_s = time.monotonic()
    time.sleep(1.5)
    os.kill(agent, signal.SIGCONT)
    wait_for(lambda: min(w.times[-1] for w in job.workers()) > stopped_at_s + 10.5, f"steps:\n{job.said()}", PATIENCE_S)
    assert job.finish() == {"node-0": 0, "node-1": 0}
    assert not job.incidents()


def test_a_host_that_stood_still_ends_its_workers_when_it_goes_on(start: START) -> None:
    # Nothing on a machine that stands still can end anything. What is promised: its workers outlive the thaw by no more than
    # the agent takes to look (a twentieth of a second; else the guard ends them 0.3 s later), and it comes back without them.
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    cluster[1].freeze()
    assert_lost(job.wait_for_incident(), cluster[1], ranks=[1])
    job.wait_for_steps(1, 2)
    frozen_at = job.steps_on(cluster[1])
    cluster[1].thaw()
    thawed_at_s = time.monotonic()
    returned_or_dead = lambda: job.events("node_returned") or job.on(cluster[1]).process.poll() is not None  # noqa: E731
    wait_for(returned_or_dead, f"node-1 to come back:\n{job.said()}", PATIENCE_S)
    worker = next(each for each in job.workers() if each.attempt == 0 and each.host == "node-1")
    wait_for(lambda: not outside(cluster[1], worker.pid), "its worker to be gone", PATIENCE_S)
    (worker,) = (each for each in job.workers() if (each.attempt, each.host) == (0, "node-1"))
    assert worker.times[-1] < thawed_at_s + 4.0, f"{job.steps_on(cluster[1]) - frozen_at} steps after the thaw"
    job.finish()
    assert len(job.incidents()) == 1
    job.assert_nothing_left()


def test_a_host_that_stood_still_is_used_again_where_there_is_no_other(start: START) -> None:
    # Its agent is back at the controller, and told to start new workers, before it is done with its old ones.
    cluster, job = start(2, 2, "--nnodes", "2")
    worker = job.wait_for_steps(0, 2)[1]
    with open(
        f"/proc/{cluster[1].pid_outside(worker.pid)}/fd/1", "wb"
    ):  # as long as somebody holds it, output may come
        cluster[1].freeze()
        assert job.wait_for_incident()["action"]["reason"] == "1 of 2 nodes are left, it waits for more"
        cluster[1].thaw()
        job.wait_for_steps(1, 2)
    assert "no answer from the controller" in job.on(cluster[1]).err
    assert job.finish() == {"node-0": 0, "node-1": 0}
    assert len(job.incidents()) == 1
    job.assert_nothing_left()


@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_a_launcher_that_is_killed_leaves_nothing_and_is_replaced(start: START, victim: str) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    launcher = job.on(cluster[1])
    os.kill(launcher.agent_pid() if victim == "agent" else launcher.guard_pid(), signal.SIGKILL)
    assert launcher.finish() == (137 if victim == "agent" else -9)
    job.assert_nothing_left([cluster[1]])
    incident = job.wait_for_incident()
    assert (incident["verdict"]["kind"], incident["verdict"]["nodes"]) == ("node_lost", ["node-1"])
    job.wait_for_steps(1, 2)
    assert job.layout(1) == names(cluster[0], cluster[2])
    assert job.finish() == {"node-0": 0, "node-1": launcher.process.returncode, "node-2": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_worker_that_dies_on_another_node_is_named_with_its_host(start: START) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    worker = job.wait_for_steps(0, 2)[1]
    os.kill(cluster[1].pid_outside(worker.pid), signal.SIGKILL)
    incident = job.wait_for_incident()
    assert (incident["verdict"]["ranks"], incident["verdict"]["nodes"]) == ([1], ["node-1"])
    assert incident["action"]["name"] == "relaunch"
    job.wait_for_steps(1, 2)
    assert job.layout(1) == names(cluster[0], cluster[1])
    assert job.finish() == {"node-0": 0, "node-1": 0, "node-2": 0}
    job.assert_never_two_at_once()


# --- clocks -----------------------------------------------------------------------------------------------------------


RAISES = f"""{STEPS}
    while not os.path.exists(DONE):
        step()
        if os.path.exists(STEPS_DIR + f"/raise-{{RANK}}-{{ATTEMPT}}"):
            raise ValueError(f"rank {{RANK}} has had enough")
        pause(0.005)
"""


def test_a_clock_that_is_an_hour_off_confuses_nobody(start: START) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1", text=RAISES, skew_s={1: 3600})
    if cluster[1].skew == "none":
        pytest.skip("clocks of hosts cannot be shifted here: no time namespaces and no libfaketime")
    began_s = time.time()
    (job.steps_dir / "raise-1-0").touch()
    first = job.wait_for_incident()
    assert (first["verdict"]["ranks"], first["verdict"]["nodes"]) == ([1], ["node-1"])
    assert began_s - 0.1 < first["onset_s"] <= first["detected_s"] <= first["decided_s"] < time.time()
    attempt = wait_for_next_steps(job)
    off_s, so_far = time.time(), len(job.incidents())
    cluster[1].power_off()
    gone_s = time.time()
    second = job.wait_for_incident(so_far + 1)
    assert_lost(second, cluster[1], ranks=[1])
    assert off_s - LEASE_S < second["onset_s"] < gone_s + 0.1, "its last heartbeat"
    assert off_s < second["detected_s"] <= second["decided_s"] < time.time()
    job.wait_for_steps(attempt + 1, 2)
    assert job.layout(attempt + 1) == names(cluster[0], cluster[2])
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": 0}
    job.assert_never_two_at_once()


def wait_for_next_steps(job: ClusterJob) -> int:
    """Wait until two ranks step again, and return their attempt: beside much else, a node may not be heard in time once more."""

    def stepped() -> list[int]:
        stepping = [worker.attempt for worker in job.workers() if len(worker.times) >= 3]
        newest = max(stepping, default=0)
        return [newest] if newest > 0 and stepping.count(newest) >= 2 else []

    return int(wait_for(stepped, f"ranks to step again:\n{job.said()}", PATIENCE_S)[0])


# --- without standby ----------------------------------------------------------------------------------------------------


def test_a_job_of_fixed_size_waits_for_another_node(start: START) -> None:
    cluster, job = start(3, 2, "--nnodes", "2")
    cluster[1].power_off()
    incident = job.wait_for_incident()
    assert_lost(incident, cluster[1], ranks=[1])
    assert incident["action"]["reason"] == "1 of 2 nodes are left, it waits for more"
    join(job, cluster[2])
    job.wait_for_steps(1, 2)
    assert job.layout(1) == names(cluster[0], cluster[2])
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_job_that_waits_for_a_node_in_vain_says_whom_it_misses(start: START) -> None:
    cluster, job = start(2, 2, "--nnodes", "2", "--wait-for-nodes", "1")
    cluster[1].power_off()
    assert job.wait_ended() == {"node-0": 1, "node-1": -9}
    assert "only 1 of 2 nodes (node-0) came within 1 s; node-1 lost" in job.on(cluster[0]).err
    job.assert_nothing_left()


def test_an_elastic_job_shrinks_at_once_and_grows_at_the_next_restart(start: START) -> None:
    cluster, job = start(4, 3, "--nnodes", "2:3")
    cluster[1].power_off()
    incident = job.wait_for_incident()
    assert_lost(incident, cluster[1], ranks=[1])
    assert incident["action"]["reason"] == "on 2 instead of 3 nodes"
    worker = job.wait_for_steps(1, 2)[1]
    assert job.layout(1) == names(cluster[0], cluster[2])
    join(job, cluster[3])
    before = job.steps_on(cluster[2])
    wait_for(lambda: job.steps_on(cluster[2]) > before + 100, "the job to go on as it is")
    assert not job.layout(2)
    os.kill(cluster[2].pid_outside(worker.pid), signal.SIGKILL)
    job.wait_for_steps(2, 3)
    assert job.layout(2) == names(cluster[0], cluster[2], cluster[3])
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": 0, "node-3": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


# --- signals ------------------------------------------------------------------------------------------------------------


SAVES = f"""{STEPS}
    def save(*_):
        for _ in range(250):  # longer than survivors of a failure get, shorter than --shutdown-timeout
            step()
            pause(0.01)
        open(f"{{STEPS_DIR}}/saved-{{RANK}}", "w").close()
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    while not os.path.exists(DONE):
        step()
        pause(0.005)
"""
GRACES = ("--restart-grace", "1", "--shutdown-timeout", "60")


def test_a_node_that_is_told_to_go_leaves_in_good_order(start: START) -> None:
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1", *GRACES, text=SAVES)
    os.kill(job.on(cluster[1]).guard_pid(), signal.SIGTERM)
    incident = job.wait_for_incident()
    assert (incident["symptom"], incident["verdict"]["nodes"]) == ("node_left", ["node-1"])
    assert "node-1 left: it was told to by SIGTERM" in incident["verdict"]["sentence"]
    assert (job.steps_dir / "saved-1").exists()
    job.wait_for_steps(1, 2)
    assert job.layout(1) == names(cluster[0], cluster[2])
    assert job.finish() == {"node-0": 0, "node-1": 143, "node-2": 0}
    assert len(job.incidents()) == 1
    job.assert_never_two_at_once()
    job.assert_nothing_left()


@pytest.mark.parametrize("first", ["controller", "other"])
def test_a_scheduler_that_ends_all_nodes_gives_all_workers_their_time(start: START, first: str) -> None:
    cluster, job = start(4, 3, "--nnodes", "3", "--standby", "1", *GRACES, text=SAVES)
    order = list(cluster) if first == "controller" else list(reversed(list(cluster)))
    for host in order:
        os.kill(job.on(host).guard_pid(), signal.SIGTERM)
    assert job.wait_ended() == {host.name: 143 for host in cluster}
    assert sorted(path.name for path in job.steps_dir.glob("saved-*")) == ["saved-0", "saved-1", "saved-2"]
    assert not job.layout(1)
    assert not job.incidents()
    job.assert_nothing_left()


def test_a_scheduler_may_also_signal_the_agents(start: START) -> None:
    cluster, job = start(2, 2, "--nnodes", "2", *GRACES, text=SAVES)
    for host in reversed(list(cluster)):
        for pid in [job.on(host).guard_pid(), *children(job.on(host).guard_pid())]:
            os.kill(pid, signal.SIGTERM)
    assert job.wait_ended() == {"node-0": 143, "node-1": 143}
    assert sorted(path.name for path in job.steps_dir.glob("saved-*")) == ["saved-0", "saved-1"]
    job.assert_nothing_left()


def test_a_scheduler_that_ends_nodes_one_after_the_other_ends_all(start: START) -> None:
    # Workers that die of SIGTERM at once: the job may just have gone on with the standby when the next one is told.
    cluster, job = start(3, 2, "--nnodes", "2", "--standby", "1")
    for host in reversed(list(cluster)):
        os.kill(job.on(host).guard_pid(), signal.SIGTERM)
    assert job.wait_ended() == {"node-0": 143, "node-1": 143, "node-2": 143}
    job.assert_never_two_at_once()
    job.assert_nothing_left()
