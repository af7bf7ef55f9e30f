"""Pods on simulated hosts (see hosts.py), made from the manifests in docs/kubernetes as a cluster makes them.

A pod is a host with a name that others look up. Its container is process 1 of a pid namespace of its own, without capabilities
and without a home folder, and gets exactly the variables that the manifest and the operator give it. What a manifest says about
a cluster that is not here (images, GPUs, volumes) is left out: /shared is a folder of the test.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from clusters import TOKEN, ClusterJob, Launcher, Worker, children
from hosts import Cluster, Host
from jobs import wait_for

MANIFESTS = Path(__file__).resolve().parents[1] / "docs" / "kubernetes"
#: What a test asks of a manifest's GPUs and patience: a machine of tests has two CPUs and many other tests.
PATIENT = ("--rdzv-conf=keep_alive_max_attempt=20",)
SECRETS = {("robust-run", "token"): TOKEN}
_VARIABLE = re.compile(r"\$\((\w+)\)")


def manifests(name: str) -> list[dict[str, Any]]:
    """Return the objects in a file of docs/kubernetes."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


@dataclass(frozen=True)
class Pod:
    """What a cluster makes of a manifest: one pod of a job."""

    name: str
    """Its host name."""
    looked_up: str
    """By which other pods find it."""
    container: Mapping[str, Any]
    operator_s: Mapping[str, str]
    """Variables that no manifest has: the operator's, or the Job controller's."""
    machine: str
    """The node that it runs on."""

    def environment(self) -> dict[str, str]:
        """Return the container's variables."""
        found = dict(self.operator_s)
        for each in self.container.get("env", ()):
            found[each["name"]] = each["value"] if "value" in each else self._from(each["valueFrom"])
        return found

    def _from(self, source: Mapping[str, Any]) -> str:
        if "secretKeyRef" in source:
            return SECRETS[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]
        paths = {
            "spec.nodeName": self.machine,
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": self.operator_s.get(
                "JOB_COMPLETION_INDEX", ""
            ),
        }
        return paths[source["fieldRef"]["fieldPath"]]

    def words(self) -> list[str]:
        """Return command and arguments, with variables put in as Kubernetes does."""
        env = self.environment()
        words = [*self.container["command"], *self.container.get("args", ())]
        return [_VARIABLE.sub(lambda found: env.get(found[1], found[0]), word) for word in words]

    def pre_stop(self) -> list[str]:
        """Return the command that runs before the container is told to end; empty if there is none."""
        return list(self.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ()))

    def ready(self) -> list[str]:
        """Return the command of its readiness probe."""
        return list(self.container["readinessProbe"]["exec"]["command"])


@dataclass
class PodJob(ClusterJob):
    """A job whose launchers are containers of pods."""

    pods: dict[str, Pod] = field(default_factory=dict)
    """By the name of the host."""

    def join(self, host: Host, *options: str, env: Mapping[str, str] | None = None) -> Launcher:
        """Start the container of the pod that this host is."""
        pod = self.pods[host.name]
        program, *arguments = pod.words()
        assert program == "robust-run"
        shared = [word.replace("=/shared/", f"={self.log_dir.parent}/") for word in arguments]
        words = [word for word in shared if not word.startswith("--nproc-per-node")]  # a pod of a test has no 8 GPUs
        script = words.pop()
        assert script == "train.py"
        argv = [self.python, "-m", "robust_run", *options, *PATIENT, *words, *self.argv]
        variables = {**self.env, **pod.environment(), **(env or {})}
        process = host.launch(argv, variables, pod=pod.name)
        self.launchers.append(Container(host, process))
        return self.launchers[-1]

    def pod_of(self, host: Host) -> int:
        """Return the process 1 of its container, as the harness sees it."""
        return self.on(host).guard_pid()

    def probe(self, host: Host) -> int:
        """Run the readiness probe in the container, as the kubelet does; return its exit code."""
        program, *words = self.pods[host.name].ready()
        assert program == "robust"
        return self.inside(host, [sys.executable, "-c", "from robust_run.robust_cli import main; main()", *words])

    def inside(self, host: Host, argv: Sequence[str]) -> int:
        """Run a command in the pid namespace of the container, with its variables; return its exit code."""
        pid = str(self._pid_on(host, self.pod_of(host)))
        argv = ["nsenter", "--target", pid, "--pid", "--mount", "--", *argv]
        env = {**self.env, **self.pods[host.name].environment()}
        return host.run(argv, check=False, env=env).returncode

    @staticmethod
    def _pid_on(host: Host, pid: int) -> int:
        """Return what the host calls a process: the last but one of its numbers, the last is the container's."""
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-2])
        raise LookupError(f"{host.name} has no process {pid}")

    def worker_pid(self, worker: Worker, host: Host) -> int:
        """Return the harness's number of a worker, whose own is that of its container."""
        assert host._init
        network = os.readlink(f"/proc/{host._init.pid}/ns/net")
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/net") == network:
                    numbers = re.search(r"^NSpid:(.*)$", Path(f"/proc/{entry}/status").read_text(), re.MULTILINE)
                    if numbers and len(numbers[1].split()) > 3 and int(numbers[1].split()[-1]) == worker.pid:
                        return int(entry)
        raise LookupError(f"{host.name} has no worker {worker.pid}")

    def delete(self, *hosts: Host) -> None:
        """Delete pods as the kubelets do, all at the same time: preStop, then SIGTERM to process 1."""
        waits = []
        for host in hosts:
            pod, pid = self.pods[host.name], self.pod_of(host)
            argv = ["sh", "-c", '"$@"; kill -TERM "$0"', str(self._pid_on(host, pid)), *(pod.pre_stop() or ["true"])]
            waits.append(host.start(argv, env=pod.environment(), name="kubelet"))
        for each in waits:
            each.wait(120)


@dataclass
class Container(Launcher):
    """The container of a pod: its process 1 is a child of what was started on the host."""

    def guard_pid(self) -> int:
        """Return its process 1, as the harness sees it."""
        return int(
            wait_for(lambda: children(self.process.pid), f"the container on {self.host.name}:\n{self.err}", 60.0)[0]
        )


def pod_job(cluster: Cluster, tmp_path: Path, pods: Sequence[Pod], *script: str, names: bool = True) -> PodJob:
    """Return a job of these pods, one a host, none of which runs yet. `names`: the cluster's DNS knows them."""
    run_id = f"t{uuid.uuid4().hex[:12]}"
    log_dir, steps_dir = tmp_path / "runs", tmp_path / f"steps-{run_id}"
    steps_dir.mkdir()
    variables = {
        "TEST_JOB": run_id,
        "TEST_STEPS": str(steps_dir),
        "ROBUST_RUN_ID": run_id,
        "GLOO_SOCKET_IFNAME": "eth0",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "",
        "XDG_STATE_HOME": "",
    }
    known = {host.name: pod for host, pod in zip(cluster, pods, strict=False)}
    job = PodJob(list(cluster), script, run_id, log_dir, steps_dir, variables, pods=known)
    if names:
        publish(cluster, job)
    return job


def publish(cluster: Cluster, job: PodJob, *hosts: Host) -> None:
    """Let names of pods lead to them, those of all unless some are given."""
    lines = (f"{host.address} {job.pods[host.name].looked_up}\n" for host in hosts or cluster if host.name in job.pods)
    with (cluster.folder / "hosts").open("a") as file:  # the same file: hosts have it mounted
        file.writelines(lines)


def end_worker(job: PodJob, host: Host, attempt: int, number: int = signal.SIGKILL) -> Worker:
    """Send a signal to one worker of an attempt on a host."""
    worker = next(each for each in job.workers() if each.attempt == attempt and each.host == job.pods[host.name].name)
    os.kill(job.worker_pid(worker, host), number)
    return worker
