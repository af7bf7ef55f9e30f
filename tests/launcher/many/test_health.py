"""What sensors of several hosts see, and what becomes of the job: a lost GPU, a line of a kernel's log, links that fail."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import PATIENCE_S, STEPS, TRAIN, ClusterJob, start_all, write
from fake_torch import write_fake_torch
from hosts import Cluster, Host, need_hosts
from jobs import wait_for
from sensor_ground import StubDriver, compile_stub

#: On each host a second card whose cable can be pulled without the controller noticing, and a kernel's log of its own.
GROUND = """
set -e
ip link add ours type veth peer name theirs
ip link set ours up
ip link set theirs up
mkfifo -m 600 /run/tmp/kmsg
mount --bind /run/tmp/kmsg /dev/kmsg
"""
#: The lease is longer than usual: a busy machine may hold an agent up for a second and more.
OPTIONS = ["--nnodes", "2", "--standby", "1", "--rdzv-conf", "keep_alive_max_attempt=6"]
#: Checks import torch in a process each.
CHECKED_S = 240.0
PANIC = "2,1,1,-;EXT4-fs (sda1): Remounting filesystem read-only\n"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        for host in cluster:
            host.run(["sh", "-c", GROUND])
        yield cluster


def start(three: Cluster, tmp_path: Path, *options: str, env: dict[str, str] | None = None) -> ClusterJob:
    """Start a job whose workers need no network, and wait until all of it is watched."""
    job = start_all(three, write(tmp_path, TRAIN), tmp_path=tmp_path, options=[*OPTIONS, *options], env=env)
    job.wait_for_event("sensors_began", 3)
    job.wait_for_steps(0, 2)
    return job


def pull(host: Host, *, out: bool = True) -> None:
    """Pull the cable of the second card, or put it back."""
    host.run(["ip", "link", "set", "theirs", "down" if out else "up"])


#: A network of its own for storage, on the second card: what goes into it comes out at the other end of the cable.
STORAGE = """
set -e
ip link set ours mtu 65000
ip link set theirs mtu 65000
ip address add 10.88.0.1/24 dev ours
ip neigh replace 10.88.0.2 lladdr 02:88:00:00:00:02 nud permanent dev ours
"""
#: Trains, and writes 1 MB a second to the storage, while it can.
WRITES = f"""{STEPS}

    from contextlib import suppress
    from torch.optim import Optimizer

    optimizer = Optimizer()
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while not os.path.exists(DONE):
        optimizer.step()
        step()
        with suppress(OSError):
            wire.sendto(bytes(50_000), ("10.88.0.2", 9))
        pause(0.05)
"""
#: 30 readings are learnt from, and who is far apart for 5 s is named.
FAST = "[outliers]\nsettle_s = 6\nhold = 0.2\n"


def test_a_node_whose_metrics_stray_is_named_and_that_stands_beside_its_crash(three: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    for host in three:
        host.run(["sh", "-c", STORAGE])
    rules = tmp_path / "rules.toml"
    rules.write_text(FAST)
    write_fake_torch(tmp_path)  # three hosts import the real one for a quarter of a minute
    options = ["--nnodes", "3", "--max-restarts", "0", "--no-warm", "--health-rules", str(rules)]
    options += ["--trace-nccl", "off", "--rdzv-conf", "keep_alive_interval=0.2,keep_alive_max_attempt=60"]
    job = start_all(three, write(tmp_path, WRITES), tmp_path=tmp_path, options=options)
    job.wait_for_event("first_step", 3)
    job.wait_for_more_steps(0, 3, more=200)  # 10 s and more: what is usual is known
    culprit = of_world(three, job, 2)
    culprit.run(["ip", "route", "add", "blackhole", "10.88.0.2/32"])
    (event, *_) = wait_for(
        lambda: alerts(job, "outlier.rdma_bytes_per_s"), f"it to be named:\n{job.said()}", PATIENCE_S
    )
    assert job.names()[event["node"]] == culprit.name
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "status", str(job.run_dir)]
    shown = three[0].run(argv).stdout
    assert f"health: {culprit.name}: rdma_bytes_per_s is " in shown
    (worker,) = (each for each in job.workers() if each.host == culprit.name)
    os.kill(culprit.pid_outside(worker.pid), signal.SIGKILL)
    incident = job.wait_for_incident()
    assert incident["verdict"]["nodes"] == [culprit.name]
    assert any("outlier.rdma_bytes_per_s" in str(each) for each in incident["evidence"]), incident
    assert all(code != 0 for code in job.wait_ended().values())
    job.assert_nothing_left()


def alerts(job: ClusterJob, name: str, kind: str = "alert") -> list[dict[str, Any]]:
    return [e for e in job.events("health_seen") if (e["event"]["name"], e["event"]["kind"]) == (name, kind)]


def spoken(job: ClusterJob) -> list[dict[str, Any]]:
    """Return what rules of links have said: a busy machine has others speak of its CPUs."""
    return [action for action in job.actions("rule_spoke") if action["rule"].startswith("network.link")]


def of_world(three: Cluster, job: ClusterJob, place: int) -> Host:
    name = job.layout(0)[place]
    return next(host for host in three if host.name == name)


def assert_replaced(three: Cluster, job: ClusterJob, culprit: Host, rule: str) -> dict[str, Any]:
    """Check that a host was evicted by a rule and the standby took its place; return the incident."""
    incident = job.wait_for_incident()
    verdict = incident["verdict"]
    assert (incident["action"]["name"], verdict["kind"]) == ("evict", "node_fault"), incident
    assert (verdict["rule"], verdict["nodes"]) == (rule, [culprit.name])
    job.wait_for_steps(1, 2)
    world = job.layout(1)
    assert culprit.name not in world
    assert len(world) == 2
    job.finish()
    job.assert_never_two_at_once()
    job.assert_nothing_left()
    return incident


def test_the_node_of_a_lost_gpu_is_evicted_and_remembered_and_the_standby_takes_over(
    three: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stub of libnvidia-ml")
    (tmp_path / "driver").mkdir()
    library = compile_stub(compiler, tmp_path / "driver")
    drivers = {host.name: StubDriver(library, host.root / "run/tmp/gpus") for host in three}
    for driver in drivers.values():
        driver.set(count=2)
    evicted = tmp_path / "evicted.list"
    env = {"ROBUST_NVML": library, "STUB_NVML_STATE": "/run/tmp/gpus"}
    job = start(three, tmp_path, "--evict-list", str(evicted), "--trace-nccl", "off", env=env)
    culprit = of_world(three, job, 1)
    drivers[culprit.name].set(lost_1=1)
    incident = assert_replaced(three, job, culprit, "gpu.lost")
    assert "GPU" in incident["verdict"]["sentence"]
    assert f'"node":"{culprit.name}"' in evicted.read_text()
    spoke = [action for action in job.actions("rule_spoke") if action["rung"] == "evict"]
    assert (spoke[0]["rule"], spoke[0]["node"]) == ("gpu.lost", culprit.name)


def test_a_line_of_the_kernel_s_log_evicts_its_node(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    culprit = of_world(three, job, 0)
    with (culprit.root / "run/tmp/kmsg").open("w") as log:
        log.write(PANIC)
    incident = assert_replaced(three, job, culprit, "disk.read_only")
    assert "Remounting filesystem read-only" in incident["verdict"]["sentence"]


def test_a_sign_that_asks_for_checks_suspends_the_job_and_the_node_that_computes_wrong_is_replaced(
    three: Cluster, tmp_path: Path
) -> None:
    options = [*OPTIONS, "--no-warm", "--diagnose-checks", "compute", "--admission-checks", "never"]
    env = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "ROBUST_CHECK_FAULTS": '[{"node": "node-1", "check": "compute", "flip": 1.0}]',
    }
    train = write(tmp_path, TRAIN)
    job = start_all(three, train, tmp_path=tmp_path, options=options, launch=list(three)[:2], env=env, admission=True)
    job.wait_for_steps(0, 2)
    job.join(three[2])
    job.wait_for_event("node_joined", 3)
    job.wait_for_event("sensors_began", 2)
    logs(three[1], "pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0")
    (suspended, evicted) = wait_for(lambda: len(made := job.actions("decided")) > 1 and made, "checks", CHECKED_S)
    assert (suspended["rung"], suspended["rule"]) == ("diagnose", "sensor_diagnose")
    assert "AER" in suspended["sentence"] and len(job.events("diagnosed")) == 1
    assert (evicted["rung"], evicted["nodes"]) == ("evict", ["node-1"]), "not for the sign, but for what it computes"
    job.wait_for_steps(1, 2, timeout_s=CHECKED_S)
    assert job.layout(1) == ["node-0", "node-2"]
    assert set(job.finish().values()) == {0}
    job.assert_nothing_left()


def logs(host: Host, *lines: str) -> None:
    """Have a host's kernel log these lines."""
    with (host.root / "run/tmp/kmsg").open("w") as log:
        log.write("".join(f"4,1,1,-;{line}\n" for line in lines))


def later(job: ClusterJob, by_s: float) -> None:
    """Return when so much time has gone by for the workers: alerts that are nearer are one."""
    begun_s = time.monotonic()
    wait_for(lambda: min(worker.times[-1] for worker in job.workers()) > begun_s + by_s, "time to pass")


def test_what_happens_to_other_jobs_on_its_machine_takes_no_node_out_and_errors_of_its_own_disks_do(
    three: Cluster, tmp_path: Path
) -> None:
    job = start(three, tmp_path)
    culprit = of_world(three, job, 1)
    for device in ("loop4", "loop5", "nbd3"):
        logs(
            culprit,
            f"I/O error, dev {device}, sector 8 op 0x0:(READ) flags 0x800 phys_seg 1 prio class 2",
            f"EXT4-fs ({device}): Remounting filesystem read-only",
            "Memory cgroup out of memory: Killed process 999999 (python) total-vm:9kB, anon-rss:8kB",
        )
        wait_for(lambda name=device: [e for e in noted(job, "disk.error") if e["event"]["subject"] == name], "a note")  # type: ignore[misc]
        later(job, 6.0)
    assert not [action for action in job.actions("rule_spoke") if action["rule"].startswith(("disk", "memory"))]
    assert not job.incidents()
    logs(culprit, "I/O error, dev sda, sector 8 op 0x0:(READ)")
    wait_for(lambda: alerts(job, "disk.error"), "the first error of its own disk")
    later(job, 6.0)
    logs(culprit, "I/O error, dev sdb, sector 8 op 0x0:(READ)")
    assert_replaced(three, job, culprit, "disk.error")


def noted(job: ClusterJob, name: str) -> list[dict[str, Any]]:
    return alerts(job, name, "note")


def test_a_link_that_fails_once_is_tolerated_and_the_second_time_evicts(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    culprit = of_world(three, job, 1)
    pull(culprit)
    wait_for(lambda: spoken(job), "the rule to speak")
    pull(culprit, out=False)
    wait_for(lambda: alerts(job, "network.link_down", "clear"), "the link to be seen up again")
    clear_s = time.monotonic()
    wait_for(
        lambda: min(worker.times[-1] for worker in job.workers()) > clear_s + 6.0, "time to pass"
    )  # nearer are one
    job.wait_for_more_steps(0, 2)
    assert not job.incidents()
    assert {(each["node"], each["tolerated"]) for each in spoken(job)} == {(culprit.name, True)}
    pull(culprit)
    assert_replaced(three, job, culprit, "network.link_down")


def test_a_bad_rule_does_not_eat_the_job(three: Cluster, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[rules."network.link_down"]\ncount = 1\nconfidence = "high"\n')
    options = [
        "--nnodes",
        "1:3",
        "--standby",
        "0",
        "--health-rules",
        str(rules),
        "--rdzv-conf",
        "last_call_timeout=30,keep_alive_max_attempt=6",
    ]
    job = start_all(three, write(tmp_path, TRAIN), tmp_path=tmp_path, options=options)
    job.wait_for_event("sensors_began", 3)
    job.wait_for_steps(0, 3)
    for host in three:
        pull(host)
    wait_for(lambda: len(spoken(job)) >= 3, "the rule to speak of all hosts")
    job.wait_for_steps(1, 2)
    spoke = spoken(job)
    assert [action["rung"] for action in spoke].count("evict") == 1
    assert all("--max-evict-share" in action["held_back"] for action in spoke if action["rung"] != "evict")
    job.finish()
    job.assert_nothing_left()


def test_training_goes_on_where_sensors_are_killed_and_an_agent_takes_them_with_it(
    three: Cluster, tmp_path: Path
) -> None:
    job = start(three, tmp_path)
    victim = of_world(three, job, 1)
    (pid,) = sensors_on(job, victim)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: alerts(job, "sensors.ended", "note"), "the end of the sensors to be noted")
    job.wait_for_more_steps(0, 2)
    (again,) = wait_for(lambda: sensors_on(job, victim), "the sensors to be started again")
    launcher = next(each for each in job.launchers if each.host is victim)
    os.kill(launcher.agent_pid(), signal.SIGKILL)
    wait_for(lambda: not sensors_on(job, victim), "the sensors to end with their agent")
    assert again != pid
    job.wait_for_steps(1, 2)
    job.finish()
    job.assert_nothing_left()


def sensors_on(job: ClusterJob, host: Host) -> list[int]:
    """Return the pids of the sensors on a host, as the harness has them."""
    return [int(line.partition(":")[0]) for line in job.left_on(host) if "sensors.process" in line]
