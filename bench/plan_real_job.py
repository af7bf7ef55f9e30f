"""Runs a short real job on simulated hosts (`tests/hosts.py`), and does to it what its schedule says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusters import PATIENT, ClusterJob, outside, start_all
from hosts import Cluster, Host
from jobs import wait_for
from plan_real_proc import catches, inside, is_there, state
from plan_real_read import read
from plan_real_words import BACK_S, HORIZON_S, LONG_S, NODES, NOT_RAISED, STANDBY, STEP_S, Came, RealJob, Strike

#: A job that did not begin within so long is broken.
START_S = 90.0
#: A patient one may take so long, whatever else the machine does.
PATIENT_S = 400.0
LOOK_EVERY_S = 0.02
#: What was done must be seen to have been done within so long.
SEEN_S = 5.0

MODEL = "STEP_S, FAILS = {step_s}, {fails}\nVERSION = {version}\n"
TRAIN = """
import errno, os, signal, sys, time

def fail(number, frame):
    with open(os.path.join(os.environ["TEST_STEPS"], f"raised-{os.getpid()}-{os.uname().nodename}"), "w"):
        pass
    raise OSError(errno.EIO, os.strerror(errno.EIO), "/data/shard")

signal.signal(signal.SIGUSR1, fail)
import torch
import torch.distributed as dist
from robust_run import checkpoint
from model import FAILS, STEP_S

dist.init_process_group("gloo")
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
step = begin = checkpoint.load(state) or 0
while True:
    step += 1
    optimizer.zero_grad()
    model(torch.ones(4, 16)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(STEP_S)
    if FAILS and step >= begin + FAILS:
        raise ValueError("a mistake of the new code")
    checkpoint.save(state, step=step)
"""
FAILS_AFTER = 5
"""New code that is bad fails after so many steps."""


def run(job: RealJob, folder: Path, keep: Path) -> Came:
    """Run it to its horizon; return what came of it. `keep`: where its journal goes."""
    with Cluster(NODES + STANDBY, folder) as cluster:
        return _Trial(job, folder, cluster, keep).run()


class _Trial:
    def __init__(self, job: RealJob, folder: Path, cluster: Cluster, keep: Path) -> None:
        self.job, self.folder, self.cluster, self.keep = job, folder, cluster, keep
        self.came = Came(
            job=job, strikes=[Strike(at_s=each.at_s, name=each.name, host=each.host) for each in job.strikes]
        )
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(TRAIN, encoding="utf-8")
        self.versions = 0
        self.write_code(fails=0)
        self.launched: ClusterJob
        self.began_unix_s = 0.0
        self._back: list[tuple[float, Host]] = []
        self._done: list[Callable[[], object]] = []

    def write_code(self, *, fails: int) -> None:
        """Write another version."""
        self.versions += 1
        text = MODEL.format(step_s=STEP_S, fails=fails, version="1" * self.versions)
        (self.code / "model.py").write_text(text, encoding="utf-8")

    def run(self) -> Came:
        self._start()
        try:
            self._strike_all()
        finally:
            self.launched.kill_everything()
        for done in self._done:
            done()
        self.came.began_unix_s = self.began_unix_s
        shutil.copyfile(self.launched.run_dir / "journal.jsonl", self.keep)
        read(self.keep, self.came)
        return self.came

    def _start(self) -> None:
        job = self.job
        options = [
            "--nnodes", str(NODES), "--standby", str(STANDBY), "--diagnose", "never", "--restart-grace", "1",
            "--ckpt-memory", "64M" if job.memory else "off", "--ckpt-dir", str(self.folder / "ckpt"),
            "--ckpt-every", str(job.every), "--ckpt-keep", "5", "--probation-steps", "20", "--http-port", "off",
        ]  # fmt: skip
        options += PATIENT if job.is_patient else ()
        env = {"OMP_NUM_THREADS": "1"}
        self.launched = start_all(
            self.cluster, str(self.code / "train.py"), tmp_path=self.folder, options=options, env=env, launch=[]
        )
        for host in self.cluster:  # one after the other: who comes first has a part in the first attempt
            self.launched.join(host)
            if host.index == 0:
                self.began_unix_s = wait_for(self._began_s, "the journal to begin", START_S)
            if host.index < NODES:
                wait_for(lambda host=host: host.name in self.launched.names().values(), f"{host.name} to join", START_S)  # type: ignore[misc]

    def _began_s(self) -> float:
        return next((line["at"] for line in self.launched.journal() if "at" in line), 0.0)

    def now_s(self) -> float:
        """Seconds since the job began."""
        return time.time() - self.began_unix_s

    def _strike_all(self) -> None:
        todo = list(self.came.strikes)
        while todo or self.now_s() < self._until_s():
            if todo and self.now_s() >= todo[0].at_s and self._is_ready():
                strike = todo.pop(0)
                strike.came = self._strike(strike)
            self._bring_back()
            time.sleep(LOOK_EVERY_S)
            assert self.now_s() < (PATIENT_S if self.job.is_patient else HORIZON_S + START_S), (
                f"the job does not train: {self.came.strikes}\n{self.launched.said()[-3000:]}"
            )
        self.came.until_s = self.now_s() if self.job.is_patient else HORIZON_S

    def _until_s(self) -> float:
        return (0.0 if self._is_ready() else LONG_S) if self.job.is_patient else HORIZON_S

    def _is_ready(self) -> bool:
        """Whether the newest attempt trains, or that does not matter."""
        if not self.job.is_patient:
            return True
        orders = [each["attempt"] for each in self.launched.actions("start_attempt")]
        trains = {each["attempt"] for each in self.launched.events("first_step")}
        fired = sum(each.came == "fired" for each in self.came.strikes)
        return bool(orders) and max(orders) >= fired and max(orders) in trains

    def _strike(self, strike: Strike) -> str:
        if strike.host < 0:
            return self._update(strike)
        host = self.cluster[strike.host]
        if not host._init:
            return "the host is off"
        if host.name in self._evicted():
            return "the host was put out of the job"
        if strike.name == "power":
            return self._power_off(strike, host)
        pid = self._worker(host)
        if not pid:
            return "no worker runs there"
        number = {"killed": signal.SIGKILL, "input_output": signal.SIGUSR1, "stopped": signal.SIGSTOP}[strike.name]
        inner = inside(pid)
        if number == signal.SIGUSR1:
            wait_for(lambda: catches(pid, number) or not is_there(pid), f"{host.name}: {pid} to begin", SEEN_S)
        strike.fired_s = self.now_s()
        os.kill(pid, number)
        if strike.name == "killed":
            self._done.append(
                _seen(lambda: not is_there(pid) or state(pid) in "ZX", f"{host.name}: {pid} to be killed")
            )
        elif strike.name == "stopped":
            wait_for(lambda: state(pid) in "TZX", f"{host.name}: {pid} to be stopped", SEEN_S)
        else:
            path = self.launched.steps_dir / f"raised-{inner}-{host.name}"
            self._done.append(lambda: _note_raised(strike, path))
        return "fired"

    def _power_off(self, strike: Strike, host: Host) -> str:
        strike.fired_s = self.now_s()
        host.power_off()
        self._back.append((0.0, host))
        return "fired"

    def _bring_back(self) -> None:
        """Hosts that were missed are on again after a while."""
        lost = self._times_lost()
        for each in list(self._back):
            lost_s = lost.get(each[1].name)
            if lost_s is not None and self.now_s() >= lost_s + BACK_S:
                self._back.remove(each)
                each[1].power_on()
                self.launched.join(each[1])

    def _times_lost(self) -> dict[str, float]:
        """Return when each host was missed last, for those that are off."""
        if not self._back:
            return {}
        names = self.launched.names()
        return {
            names[line["event"]["node"]]: line["at"] - self.began_unix_s
            for line in self.launched.journal()
            if line.get("event", {}).get("type") == "node_lost"
        }

    def _update(self, strike: Strike) -> str:
        self.write_code(fails=FAILS_AFTER if strike.name == "bad_update" else 0)
        argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "update", "--when", "now"]
        done = self.cluster[0].run([*argv, "--slower", str(self.launched.run_dir)], check=False, timeout_s=60.0)
        said = f"{done.stdout}{done.stderr}".strip()
        strike.fired_s = self.now_s()
        return "fired" if done.returncode == 0 else f"refused: {said[-300:]}"

    def _evicted(self) -> set[str]:
        return {each["name"] for each in self.launched.actions("host_evicted")}

    def _worker(self, host: Host) -> int:
        """Return the worker of the newest attempt on a host, if all of them run and were not told to end; else 0."""
        started: dict[str, list[int]] = {}
        order: dict[str, Any] = {}
        for line in self.launched.journal():
            what = line.get("action") or line.get("event") or {}
            if what.get("type") == "start_attempt":
                order, started = what, {}
            elif what.get("type") == "attempt_started" and what["attempt"] == order.get("attempt"):
                started[what["node"]] = what["pids"]
            elif what.get("type") in ("end_attempt", "finish") and not what.get("only"):
                order, started = {}, {}
        if not order or len(started) < order.get("nodes", NODES):
            return 0
        names = self.launched.names()
        pids = next((pids for node, pids in started.items() if names[node] == host.name), [])
        return outside(host, pids[0]) if pids else 0


def _seen(condition: Callable[[], Any], what: str) -> Callable[[], object]:
    wait_for(condition, what, SEEN_S)
    return lambda: None


def _note_raised(strike: Strike, path: Path) -> None:
    """A rank that waits in a collective, for one that was struck before, raises nothing until that is over."""
    if not path.exists():
        strike.came, strike.fired_s = NOT_RAISED, None


def came_or_problem(job: RealJob, folder: Path, keep: Path) -> Came:
    """Run it; what is wrong with the trial is said in what came of it."""
    try:
        return run(job, folder, keep)
    except (AssertionError, OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        return Came(job=job, strikes=list(job.strikes), problem=f"{type(error).__name__}: {error}"[:2000])
