"""The ladder on real hosts: a node that computes wrong is evicted, a bad standby is refused, a replay finds who fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clusters import STEPS, ClusterJob, start_all, wait_for, write
from hosts import Cluster, Host, need_hosts

START = Callable[..., tuple[Cluster, ClusterJob]]

#: Checks import torch in a process each, on a machine that is busy.
CHECKED_S = 240.0
#: A longer lease than usual: a busy machine may hold an agent up for a second and more.
CALM = ("--rdzv-conf", "keep_alive_max_attempt=6")

pytestmark = pytest.mark.timeout(600)

CRASHES_WITH = f"""{STEPS}

    import signal
    hosts = os.environ["TEST_BAD"].split(",")
    while not os.path.exists(DONE):
        step()
        pause(0.005)
        if socket.gethostname() in hosts:
            os.kill(os.getpid(), signal.SIGSEGV)
"""
"""A training that dies on some hosts, on all of them where it is told so of `node-0`."""

REPLAYED = f"""{STEPS}

    import signal
    # ROBUST_REPLAY: nothing is saved here, so that it may be replayed.
    for _ in range(40 if "ROBUST_REPLAY" in os.environ else 10**9):
        step()
        pause(0.005)
        if socket.gethostname() == os.environ["TEST_BAD"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        if os.path.exists(DONE):
            break
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[START]:
    """Start a job on hosts, whose history of checks is their own."""
    need_hosts()
    with ExitStack() as stack:

        def started(
            hosts: int, text: str, *options: str, at_first: int | None = None, **env: str
        ) -> tuple[Cluster, ClusterJob]:
            cluster = stack.enter_context(Cluster(hosts, tmp_path))
            job = start_all(
                cluster,
                write(tmp_path, text),
                tmp_path=tmp_path,
                options=["--no-warm", *CALM, *options],
                launch=list(cluster)[: hosts if at_first is None else at_first],
                env={"XDG_STATE_HOME": str(tmp_path / "state"), **env},
                admission=True,
            )
            stack.callback(lambda: print(job.said()))
            return cluster, job

        yield started


def decided(job: ClusterJob, count: int) -> list[dict[str, Any]]:
    """Wait for so many decisions of the ladder."""
    found: list[dict[str, Any]] = wait_for(
        lambda: len(made := job.actions("decided")) >= count and made, f"{count} decisions:\n{job.said()}", CHECKED_S
    )
    return found


ROBUST = (sys.executable, "-c", "from robust_run.robust_cli import main; main()")


def robust(host: Host, job: ClusterJob, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a `robust` command on a host; return what it prints and says."""
    done = host.run([*ROBUST, *arguments], check=False, env=job.env, timeout_s=CHECKED_S)
    assert done.returncode == code, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def wrong(*nodes: str, check: str = "model") -> str:
    return json.dumps([{"node": node, "check": check, "flip": 1.0} for node in nodes])


def test_a_node_that_flips_bits_is_evicted_and_the_spare_takes_over(start: START) -> None:
    options = ("--nnodes", "3", "--standby", "1", "--admission-checks", "never", "--diagnose-checks", "model")
    cluster, job = start(4, CRASHES_WITH, *options, at_first=3, TEST_BAD="node-1", ROBUST_CHECK_FAULTS=wrong("node-1"))
    job.wait_for_event("node_joined", 3)
    job.join(cluster[3])
    job.wait_for_event("node_joined", 4)
    rungs = [(each["rung"], each["rule"]) for each in decided(job, 2)]
    assert rungs == [("diagnose", "unexplained_diagnose"), ("evict", "suspects_evicted")]
    assert decided(job, 2)[1]["nodes"] == ["node-1"]
    job.wait_for_steps(2, 3, timeout_s=CHECKED_S)
    assert job.layout(2) == ["node-0", "node-3", "node-2"]
    assert len(job.events("diagnosed")) == 1
    measured = json.loads((job.run_dir / "incidents" / "0002.checks.json").read_bytes())
    assert {each["node"] for each in measured["results"]} == {"node-0", "node-1", "node-2"}
    told, _ = robust(cluster[0], job, "explain", "2", str(job.run_dir))
    assert "1. diagnose" in told and "2. evict node-1" in told
    assert "rule suspects_evicted: nodes that checks found to be at fault are evicted" in told
    assert "checks: node-1 (high, " in told
    assert set(job.finish().values()) == {0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_idle_nodes_are_checked_for_whoever_asks_and_those_that_train_are_not(start: START) -> None:
    options = ("--nnodes", "1", "--standby", "2", "--admission-checks", "never")
    cluster, job = start(
        3, CRASHES_WITH, *options, at_first=1, TEST_BAD="", ROBUST_CHECK_FAULTS=wrong("node-2", check="compute")
    )
    job.wait_for_steps(0, 1)
    for host in (cluster[1], cluster[2]):
        job.join(host)
    job.wait_for_event("node_joined", 3)
    wait_for((job.run_dir / "api.json").exists, "the API", CHECKED_S)
    asked = ("check", str(job.run_dir), "--only", "compute", "--seconds", "0.2")
    found, went = robust(cluster[0], job, *asked, "--all", code=1)
    assert "left out: node-0 trains in attempt 0" in went
    assert "compute on node-1:" in went and "SUSPECT node-2" in found
    assert "nothing was found on node-1" in found
    report = json.loads(robust(cluster[1], job, *asked, "--node", "node-1", "--json")[0])
    assert report["judgement"]["passed"] == ["node-1"]
    _, refused = robust(cluster[0], job, *asked, "--node", "node-0", code=1)
    assert (
        "node-0 trains in attempt 0: checks beside training only measure training; idle are node-1, node-2" in refused
    )
    assert len(job.events("attempt_started")) == 1
    assert set(job.finish().values()) == {0}
    job.assert_nothing_left()


def test_a_standby_that_computes_wrong_is_refused(start: START) -> None:
    options = ("--nnodes", "2", "--standby", "2", "--diagnose-checks", "compute")
    cluster, job = start(
        4, CRASHES_WITH, *options, at_first=2, TEST_BAD="", ROBUST_CHECK_FAULTS=wrong("node-2", check="compute")
    )
    job.wait_for_steps(0, 2)
    job.join(cluster[2])
    job.join(cluster[3])
    checked = {each["name"]: each for each in job.wait_for_event("standby_checked", 2, CHECKED_S)}
    assert not checked["node-2"]["admitted"]
    assert checked["node-3"]["admitted"], checked["node-3"]
    cluster[1].power_off()
    job.wait_for_steps(1, 2)
    assert job.layout(1) == ["node-0", "node-3"]
    codes = job.finish()
    assert codes == {"node-0": 0, "node-1": -9, "node-2": 0, "node-3": 0}
    job.assert_nothing_left()


def test_a_standby_that_is_needed_while_it_is_checked_is_taken_at_once(start: START) -> None:
    hang = json.dumps([{"node": "node-2", "check": "compute", "hang": True}])
    options = ("--nnodes", "2", "--standby", "1", "--diagnose-checks", "compute")
    cluster, job = start(3, CRASHES_WITH, *options, at_first=2, TEST_BAD="", ROBUST_CHECK_FAULTS=hang)
    job.wait_for_steps(0, 2)
    job.join(cluster[2])
    job.wait_for_event("node_joined", 3)
    wait_for(lambda: any("diagnostics.compute" in each for each in job.left_on(cluster[2])), "a check", CHECKED_S)
    cluster[1].power_off()
    job.wait_for_steps(1, 2)
    assert not job.events("standby_checked")
    wait_for(
        lambda: not [each for each in job.left_on(cluster[2]) if "health.diagnostics" in each], "the check to be ended"
    )
    assert job.finish() == {"node-0": 0, "node-1": -9, "node-2": 0}
    job.assert_nothing_left()


def test_a_replay_finds_the_node_on_which_the_program_fails(start: START) -> None:
    options = ("--nnodes", "3:4", "--max-restarts", "9", "--diagnose-checks", "model", "--max-evict-share", "0.25")
    _, job = start(4, REPLAYED, *options, "--restart-grace", "1", TEST_BAD="node-2")
    made = decided(job, 4)
    rules = [each["rule"] for each in made]
    assert rules == ["unexplained_diagnose", "all_passed", "failed_again_replay", "replay_found"], made
    assert made[-1]["nodes"] == ["node-2"]
    replays = [order for order in job.actions("start_attempt") if order.get("replay_steps")]
    last = max(order["attempt"] for order in replays)
    job.wait_for_steps(last + 1, 3, timeout_s=CHECKED_S)
    assert {order["nodes"] for order in replays} == {2}, "rows of two, columns of two"
    assert set(job.finish().values()) == {0}
    job.assert_nothing_left()
