"""A job whose nodes keep each other's checkpoints in memory, which a schedule of `memory_cuts.py` strikes, and what must hold.

    problem = try_out(drawn(random.Random("7/3")), folder)

Integers are trained, whose sums are exact in any order, and saved at every step. Each rank also saves a tensor that no other
rank and no other step has, and looks at it when it has loaded: so nothing wrong is ever loaded unseen. In the end the weights are
those of an undisturbed run, computed here; no rank lived twice; nothing is left on any host.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from clusters import STEPS, ClusterJob, start_all, write
from hosts import Cluster, Host
from jobs import wait_for
from memory_cuts import RANKS, SPARE, STEP_S, Cut, Followed, Schedule, judge, victims

PRIME = 2**31 - 1
WIDTH = 32
EVERY = 20
"""Steps between two checkpoints in storage."""
LEASE_S = 7
"""More than is usual: a busy machine may hold an agent up for some seconds."""
PATIENCE_S = 300.0
LAST = 6
"""So many of the last steps tell how busy the machine was."""
FEW = 3
"""Steps after which a job counts as training."""

TRAIN = f"""{STEPS}
    killer_in, killer = os.pipe()
    if not os.fork():  # waits for how many seconds a save may still take, and kills the rank then
        os.close(killer)
        said = os.read(killer_in, 32)
        end = time.monotonic() + float(said or 0)
        while said and time.monotonic() < end:
            pass
        if said:
            os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    os.close(killer_in)

    import fcntl

    import torch
    import torch.distributed as dist

    from robust_run import checkpoint

    lock = open(f"{{STEPS_DIR}}/lock-{{RANK}}", "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        open(f"{{STEPS_DIR}}/twice-{{ATTEMPT}}-{{RANK}}", "w").close()

    dist.init_process_group("gloo")
    weights = torch.arange(1, {WIDTH} + 1, dtype=torch.int64)
    mine = torch.zeros(200_000, dtype=torch.int64)
    state = {{"weights": weights, f"mine-{{RANK}}": mine}}
    at = checkpoint.load(state) or 0
    if at and not bool((mine == at * 10 + RANK).all()):
        open(f"{{STEPS_DIR}}/wrong-{{ATTEMPT}}-{{RANK}}", "w").close()
    with open(f"{{STEPS_DIR}}/began.{{ATTEMPT}}.{{RANK}}.part", "w") as file:
        print(at, *weights.tolist(), file=file)
    os.rename(file.name, file.name.removesuffix(".part"))
    done = torch.zeros(1, dtype=torch.int64)
    took_s = 0.001
    while not done:
        at += 1
        part = (weights * (RANK + 3) + at * 7919) % {PRIME}
        dist.all_reduce(part)
        weights.copy_((weights * 31 + part) % {PRIME})
        mine.fill_(at * 10 + RANK)
        pause({STEP_S})
        kill = f"{{STEPS_DIR}}/kill.{{ATTEMPT}}.{{RANK}}"
        is_doomed = os.path.exists(kill)
        if is_doomed:
            with open(kill) as file:
                os.write(killer, b"%f" % (took_s * float(file.read())))
        begun_s = time.monotonic()
        checkpoint.save(state, step=at, every={EVERY})
        took_s = time.monotonic() - begun_s
        if is_doomed:
            open(f"{{STEPS_DIR}}/after.{{ATTEMPT}}.{{RANK}}", "w").close()
        step()
        done[0] = int(RANK == 0 and os.path.exists(DONE))
        dist.broadcast(done, 0)
    with open(f"{{STEPS_DIR}}/final-{{RANK}}", "w") as file:
        print(at, *weights.tolist(), file=file)
    dist.destroy_process_group()
"""


def undisturbed(steps: int) -> list[int]:
    """Return the weights after so many steps of all ranks."""
    weights = list(range(1, WIDTH + 1))
    for step in range(1, steps + 1):
        for place, weight in enumerate(weights):
            part = sum((weight * (rank + 3) + step * 7919) % PRIME for rank in range(RANKS))
            weights[place] = (weight * 31 + part) % PRIME
    return weights


def try_out(
    schedule: Schedule, folder: Path, note: Callable[[Cut, Followed], None] = lambda *_: None, *, admission: bool = True
) -> str:
    """Carry it out; return what was wrong, empty if nothing was. `note` is told what followed each cut.

    `admission`: as `start_all` has it.
    """
    with Cluster(schedule.nodes + SPARE, folder) as cluster:
        trial = _Trial(schedule, cluster, folder, admission=admission)
        try:
            for cut in schedule.cuts:
                trial.wait_until_copied()
                followed = trial.strike(cut)
                note(cut, followed)
                problem = judge(cut, followed)
                assert not problem, problem
                trial.bring_back()
            trial.wait_until_copied()
            trial.finish()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"{error!s:.1500}\n{trial.job.said()[-6000:]}"
        finally:
            trial.job.kill_everything()
    return ""


class _Trial:
    """One job, from its start to its end."""

    def __init__(self, schedule: Schedule, cluster: Cluster, folder: Path, *, admission: bool) -> None:
        self._cluster, self._storage = cluster, folder / "ckpt"
        self._nodes = schedule.nodes
        options = ["--nnodes", str(schedule.nodes), "--nproc-per-node", str(RANKS // schedule.nodes)]
        options += ["--standby", str(SPARE), "--controller-standby", "2", "--restart-grace", "0.3"]
        options += ["--rdzv-conf", f"keep_alive_max_attempt={LEASE_S}", "--max-restarts", "100"]
        options += ["--ckpt-dir", str(self._storage)]
        self.job: ClusterJob = start_all(
            cluster, write(folder, TRAIN), tmp_path=folder, options=options, admission=admission
        )
        self._attempt = 0
        """The one that trains."""

    def wait_until_copied(self) -> None:
        """Wait until the attempt trains, storage has something, and all its nodes know where to send copies."""
        self._wait(lambda: self._trains(self._attempt), f"attempt {self._attempt} to train")
        self._wait(lambda: len(self._copies()) == self._nodes, "all to be told where to send copies")
        self._wait(lambda: self._stored() > 0, "a checkpoint in storage")
        hosts = len(self._cluster)
        self._wait(lambda: len(self._joined()) == hosts, f"{hosts} hosts to join")

    def strike(self, cut: Cut) -> Followed:
        """Carry a cut out; return what came of it, once the job trains again."""
        self.job.wait_for_steps(self._attempt, RANKS, self._made() + cut.steps, PATIENCE_S)
        lost, load = self._attempt, os.getloadavg()[0] / (os.cpu_count() or 1)
        if cut.act == "kill":
            stored = self._stored()
            self._kill(cut)
        else:
            names = victims(cut, self.job.layout(self._attempt), self._copies())
            time.sleep(cut.within * STEP_S)
            stored = self._stored()
            for name in names:
                self._host(name).power_off()
        self._attempt = self._wait(self._trains_after, f"training to go on after {cut.name}")
        reached = max(self._began(attempt) + self._made(attempt) for attempt in range(lost, self._attempt))
        (chosen,) = [each for each in self.job.events("resume_chosen") if each["attempt"] == self._attempt]
        in_save = cut.act == "kill" and not (self.job.steps_dir / f"after.{lost}.{cut.place % RANKS}").exists()
        followed = Followed(
            reached,
            self._began(self._attempt),
            chosen["source"],
            stored_before=stored,
            stored_after=self._stored(),
            slowest_s=round(self._slowest_s(lost), 2),
            load=round(load, 1),
            stride=self._stride(lost),
            in_save=in_save,
        )
        self._check_what_was_loaded()
        return followed

    def _stride(self, attempt: int) -> int:
        said = [each for each in self.job.events("memory_needs") if each["attempt"] == attempt]
        return max((max(each["keeps"], each["copies"]) for each in said), default=1)

    def bring_back(self) -> None:
        """Have hosts that lost their power stand by."""
        before = self._joined()
        off = [host for host in self._cluster if not host._init]
        for host in off:
            host.power_on()
            self.job.join(host)
        for host in off:
            self._wait(lambda host=host: self._joined()[host.name] > before[host.name], f"{host.name} to join again")  # type: ignore[misc]

    def finish(self) -> None:
        """Have the job end, and hold what it made against what it should have."""
        codes = self.job.finish(PATIENCE_S)
        assert set(codes.values()) == {0}, f"launchers ended with {codes}"
        lines = [(self.job.steps_dir / f"final-{rank}").read_text() for rank in range(RANKS)]
        assert len(set(lines)) == 1, f"ranks ended differently: {lines}"
        steps, *weights = map(int, lines[0].split())
        assert weights == undisturbed(steps), f"the weights after {steps} steps are not those of an undisturbed run"
        self._check_what_was_loaded()
        twice = sorted(path.name for path in self.job.steps_dir.glob("twice-*"))
        assert not twice, f"a rank lived twice (attempt, rank): {twice}"
        self.job.assert_never_two_at_once()
        self.job.assert_nothing_left()
        left = sorted(path.name for path in self._storage.iterdir() if not re.fullmatch(r"step-\d+", path.name))
        assert not left, f"left in storage: {left}"

    def _kill(self, cut: Cut) -> None:
        rank = cut.place % RANKS
        path = self.job.steps_dir / f"kill.{self._attempt}.{rank}"
        part = path.with_name(f"part.{path.name}")
        part.write_text(str(cut.within))
        part.rename(path)

    def _check_what_was_loaded(self) -> None:
        wrong = sorted(path.name for path in self.job.steps_dir.glob("wrong-*"))
        assert not wrong, f"something else than was saved has been loaded (attempt, rank): {wrong}"
        for path in self.job.steps_dir.glob("began.*"):
            if path.suffix != ".part":
                began, *weights = map(int, path.read_text().split())
                assert weights == undisturbed(began), f"{path.name}: the weights are not those of step {began}"

    # --- what there is

    def _wait(self, condition: Callable[[], object], what: str) -> int:
        found: int = wait_for(condition, f"{what}:\n{self.job.said()[-6000:]}", PATIENCE_S)
        return found

    def _trains(self, attempt: int) -> bool:
        """Whether all ranks of an attempt have made some steps."""
        made = [len(each.times) for each in self.job.workers() if each.attempt == attempt]
        return len(made) == RANKS and min(made) >= FEW

    def _trains_after(self) -> int:
        """Return the newest attempt if it is a later one and trains; else 0."""
        newest = max(each.attempt for each in self.job.workers())
        return newest if newest > self._attempt and self._trains(newest) else 0

    def _made(self, attempt: int = -1) -> int:
        attempt = self._attempt if attempt < 0 else attempt
        return max((len(each.times) for each in self.job.workers() if each.attempt == attempt), default=0)

    def _began(self, attempt: int) -> int:
        """Return the step that an attempt started from; 0 if no rank came so far."""
        paths = [self.job.steps_dir / f"began.{attempt}.{rank}" for rank in range(RANKS)]
        found = {int(path.read_text().split()[0]) for path in paths if path.exists()}
        assert len(found) <= 1, f"ranks of attempt {attempt} began at steps {sorted(found)}"
        return found.pop() if found else 0

    def _slowest_s(self, attempt: int) -> float:
        """Return how long the longest of the last steps of an attempt took, on any rank."""
        lasts = [each.times[-LAST:] for each in self.job.workers() if each.attempt == attempt]
        return max((b - a for times in lasts for a, b in pairwise(times)), default=0.0)

    def _stored(self) -> int:
        """Return the newest step in storage."""
        names = os.listdir(self._storage) if self._storage.exists() else []
        whole = [name for name in names if (self._storage / name / "MANIFEST").exists()]  # a power cut leaves others
        return max((int(name.removeprefix("step-")) for name in whole if re.fullmatch(r"step-\d+", name)), default=0)

    def _copies(self) -> dict[str, str]:
        """Return by name of a host which one gets its copies, in this attempt; the newest order counts."""
        names = self.job.names()
        orders = [order for order in self.job.actions("memory_peers") if order["attempt"] == self._attempt]
        world = self.job.layout(self._attempt)
        told = {names[peer["node"]]: peer["name"] for order in orders for peer in order["peers"]}
        return {name: peer for name, peer in told.items() if name in world}

    def _joined(self) -> dict[str, int]:
        """Return by name of a host how often it has joined."""
        return Counter(event["node"]["name"] for event in self.job.events("node_joined"))

    def _host(self, name: str) -> Host:
        return next(host for host in self._cluster if host.name == name)
