"""Power cuts and their like: something happens to one of the hosts of a job, at any moment, and the job goes on.

    problem = try_out(PowerCut("power", 1, 0.7), folder)

Three nodes and a standby, simulated (see hosts.py). What happens to a node costs an attempt, which names it, and the standby
takes over; what happens to the standby or to the controller's process costs nothing. Never do workers of two attempts run at
once, and nothing of the job is left on any host.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from clusters import TRAIN, ClusterJob, start_all, write
from hosts import Cluster

#: More than is usual: a busy machine may hold an agent up for some seconds.
LEASE_S = 7
LATEST_S = 3.0
STANDBY = 3

OFF = frozenset({"power", "reboot", "killed"})
"""After these nothing of the job runs on the host any more, unless somebody starts it again."""
ACTS = ("power", "reboot", "cut", "cut from it", "cut to it", "killed", "controller")


@dataclass(frozen=True)
class PowerCut:
    """What happens, to which host, how long after all ranks had begun to work."""

    act: str
    victim: int
    """1 and 2 are nodes, 3 is the standby. Host 0 is where the nodes meet; the act `controller` kills its controller process."""
    after_s: float

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.act} at host {0 if self.act == 'controller' else self.victim} after {self.after_s:.2f} s"

    @property
    def costs_an_attempt(self) -> bool:
        """Whether workers were lost."""
        return self.act != "controller" and self.victim != STANDBY


def drawn(chance: random.Random) -> PowerCut:
    """Draw one."""
    return PowerCut(chance.choice(ACTS), chance.randint(1, STANDBY), round(chance.uniform(0, LATEST_S), 2))


def try_out(cut: PowerCut, folder: Path, *, admission: bool = True) -> str:
    """Have it happen; return what was wrong with what followed, empty if nothing was. `admission`: as `start_all` has it."""
    with Cluster(STANDBY + 1, folder) as cluster:
        options = ["--nnodes", "3", "--standby", "1", "--no-warm", "--rdzv-conf", f"keep_alive_max_attempt={LEASE_S}"]
        job = start_all(
            cluster,
            write(folder, TRAIN),
            tmp_path=folder,
            options=options,
            launch=list(cluster)[:STANDBY],
            admission=admission,
        )
        try:
            job.wait_for_steps(0, 3)
            job.join(cluster[STANDBY])
            job.wait_for_event("node_joined", STANDBY + 1)
            time.sleep(cut.after_s)
            _strike(cut, cluster, job)
            _check(cut, cluster, job)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"{error!s:.1000}\n{job.said()[-2000:]}"
        finally:
            job.kill_everything()
    return ""


def _strike(cut: PowerCut, cluster: Cluster, job: ClusterJob) -> None:
    host = cluster[cut.victim]
    if cut.act == "power":
        host.power_off()
    elif cut.act == "reboot":
        host.reboot()
    elif cut.act == "cut":
        host.cut()
    elif cut.act == "cut from it":
        host.cut_from(cluster[0], one_way=True)
    elif cut.act == "cut to it":
        cluster[0].cut_from(host, one_way=True)
    elif cut.act == "killed":
        job.on(host).kill()
    else:
        os.kill(job.on(cluster[0]).controller_pid(), signal.SIGKILL)


def _check(cut: PowerCut, cluster: Cluster, job: ClusterJob) -> None:
    lost = cluster[cut.victim].name
    if cut.costs_an_attempt:
        incident = job.wait_for_incident()
        assert incident["verdict"]["nodes"] == [lost], f"named {incident['verdict']} for {cut.name}"
        job.wait_for_steps(1, 3)
        layout = job.layout(1)
        assert lost not in layout and len(layout) == 3, f"attempt 1 has {layout}"
    else:
        job.wait_for_more_steps(0, 3)
        if cut.act == "controller":  # all are with the new one, before anything else happens
            job.wait_for_event("controller_resumed")
            job.wait_for_event("node_returned", STANDBY + 1)
        else:  # a standby that is gone is noticed, too
            job.wait_for_event("node_lost")
    if cut.act.startswith("cut"):
        (cluster[0] if cut.act == "cut to it" else cluster[cut.victim]).heal()
        job.wait_for_event("node_returned")
    job.wait_for_more_steps(int(cut.costs_an_attempt), 3)
    codes = job.finish()
    dead = {lost} if cut.act in OFF else set()
    assert all(code == 0 for name, code in codes.items() if name not in dead), f"exit codes: {codes}"
    assert len(job.incidents()) == int(cut.costs_an_attempt), f"{len(job.incidents())} incidents"
    job.assert_never_two_at_once()
    job.assert_nothing_left()
