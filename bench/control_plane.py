"""What one controller bears: simulated agents join, start an attempt, send heartbeats, lose a node, fail all at once.

    python bench/control_plane.py --agents 100,1000,10000
    python bench/control_plane.py --agents 1000 --nproc 8 --peer 100

The controller is the real process with its journal on disk. The agents are simulated, a few thousand a process, with the real
protocol over real sockets (see `simulated_agents.py`); their work shares this machine's cores with the controller, so CPU
seconds of the controller are shown beside durations. One agent more than the job needs joins: it stands by.

    join        all dial at once until all are in the journal
    start       the last needed node joined -> all said AttemptStarted
    heartbeat   share of one core that the controller takes while nothing happens
    verdict     last sign of life of a node that lost power -> NodeLost (3.5 s of it are the lease and its margin)
    switch      NodeLost -> all nodes, the standby included, said AttemptStarted of the next attempt
    failure     a rank failed, all others lost their connections -> all said AttemptStarted of the next attempt
    resume      the controller was killed and started again -> all agents are back; nothing was restarted
    stop        SIGTERM for the job -> all agents are home

`exponent` says how a figure grows with the number of agents: 1 is linear. With --peer, torch's c10d rendezvous is measured
beside it, in turns: until all handlers of N agents have their rank. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

from control_rig import BOOT, HERE, BenchError, Rig
from sidebyside import machine, numbers, spread, unwind_on_sigterm

from robust_run.launcher.control.sockets import raise_file_limit
from robust_run.launcher.model.actions import OpenStore, RecordIncident
from robust_run.launcher.model.events import AttemptStarted, RankExited
from robust_run.launcher.model.node_events import NodeJoined, NodeLost
from robust_run.launcher.records.journal import JournalEntry
from robust_run.launcher.records.journal_reading import read

COLUMNS = {
    "join_s": "join s",
    "start_s": "start s",
    "heartbeat_cpu": "heartbeat CPU",
    "verdict_s": "verdict s",
    "switch_s": "switch s",
    "failure_s": "failure s",
    "resume_s": "resume s",
    "stop_s": "stop s",
    "rss_mib": "RSS MiB",
    "journal_mib": "journal MiB",
}
CPU_COLUMNS = {
    "join_cpu_s": "join",
    "start_cpu_s": "start",
    "switch_cpu_s": "loss, switch",
    "failure_cpu_s": "failure",
    "resume_cpu_s": "resume",
}


def measure(args: argparse.Namespace, agents: int) -> dict[str, Any]:
    """Run the whole story once with so many nodes. Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="control-plane-") as folder:
        rig = Rig(folder, agents, args.nproc, args.boot)
        try:
            seen = _story(rig, args)
            _, entries = read(rig.journal)
            seen["journal_mib"] = os.path.getsize(rig.journal) / (1 << 20)
        finally:
            rig.close()
            if args.keep:
                shutil.rmtree(args.keep, ignore_errors=True)
                shutil.copytree(folder, args.keep, ignore=shutil.ignore_patterns("*.sock"))
    return {"agents": agents, "nproc": args.nproc} | {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in (seen | _times(seen, entries)).items()
    }


def _story(rig: Rig, args: argparse.Namespace) -> dict[str, Any]:
    """Let it happen, and return what is seen from outside."""
    seen: dict[str, Any] = {}
    rig.until(lambda: all(fleet.seen for fleet in rig.fleets), "start of the simulated agents")
    rig.rest(0.5)
    seen["join_cpu_s"] = -rig.cpu_s
    seen["join_at_s"] = time.monotonic()
    rig.tell_all(do="join")
    rig.until(lambda: rig.total("joined") == rig.nodes + 1, "join")
    seen["join_cpu_s"] += rig.cpu_s
    seen["start_cpu_s"] = -rig.cpu_s
    rig.until(lambda: rig.heard("started", 0) == rig.nodes, "start")
    seen["start_cpu_s"] += rig.cpu_s
    seen["dials"] = rig.total("dials")
    rig.rest(2.0)
    seen |= _steady(rig, args.steady_s)
    before_s, waited_s = rig.cpu_s, rig.waited_s
    began_s = time.monotonic()
    rig.fleets[-1].send(do="silence", attempt=0)
    rig.until(lambda: rig.heard("started", 1) == rig.nodes, "switch to the standby")
    seen["silent_at_s"] = rig.most("silent_at_s")
    seen["switch_cpu_s"] = rig.cpu_s - before_s - seen["heartbeat_cpu"] * (time.monotonic() - began_s)
    rig.rest(2.0)
    before_s = rig.cpu_s
    for fleet in rig.fleets:
        fleet.send(do="fail", attempt=1, culprit=fleet is rig.fleets[0])
    rig.until(lambda: rig.heard("started", 2) == rig.nodes, "restart after a failure of all")
    seen["failure_cpu_s"] = rig.cpu_s - before_s
    rig.rest(2.0)
    seen |= {"slowest_answer_s": rig.most("slowest_answer_s"), "lapsed_leases": rig.total("lapsed")}
    seen["waited_for_core_s"] = rig.waited_s - waited_s
    seen["rss_mib"] = rig.rss_mib
    if rig.nodes <= args.resume_up_to:
        seen |= _resume(rig)
    stop_at_s = time.monotonic()
    rig.fleets[0].send(do="stop")
    rig.until(lambda: rig.total("home") == rig.nodes, "stop")
    seen["stop_s"] = time.monotonic() - stop_at_s
    rig.controller.wait(30)
    return seen


def _steady(rig: Rig, duration_s: float) -> dict[str, Any]:
    """Nothing happens but heartbeats."""
    rig.tell_all(do="forget")
    rig.rest(0.2)
    cpu_s, answers, began_s = rig.cpu_s, rig.total("answers"), time.monotonic()
    rig.rest(duration_s)
    took_s = time.monotonic() - began_s
    return {
        "heartbeat_cpu": (rig.cpu_s - cpu_s) / took_s,
        "heartbeats_per_s": (rig.total("answers") - answers) / took_s,
        "slowest_steady_answer_s": rig.most("slowest_answer_s"),
    }


def _resume(rig: Rig) -> dict[str, Any]:
    """The controller dies and comes back."""
    joins = rig.total("joins")
    killed_at_s = rig.restart_controller()
    rig.until(lambda: rig.total("joins") >= joins + rig.nodes and rig.total("joined") == rig.nodes, "resume")
    resumed_s = time.monotonic() - killed_at_s
    cpu_s = rig.cpu_s
    rig.rest(5.0)
    return {"resume_s": resumed_s, "resume_cpu_s": cpu_s, "attempt_after_resume": 3 if rig.heard("started", 3) else 2}


def _times(seen: dict[str, Any], entries: Iterable[JournalEntry]) -> dict[str, Any]:
    """Return the durations, from the controller's own record."""
    last: dict[Any, float] = {}
    first: dict[Any, float] = {}
    counts: dict[Any, int] = {}
    for entry in entries:
        if entry.term > 1:
            break  # what follows is said again to a controller that was away
        subject = entry.event if entry.event is not None else entry.action
        attempt = subject.attempt if isinstance(subject, (AttemptStarted, OpenStore, RankExited)) else None
        key = (type(subject), attempt)
        if isinstance(subject, NodeLost) and entry.mono < seen["silent_at_s"]:
            continue  # it had joined, and given up waiting for the answer
        first.setdefault(key, entry.mono)
        last[key] = entry.mono
        counts[key] = counts.get(key, 0) + 1
    lost_s = first[NodeLost, None]
    return {
        "join_s": last[NodeJoined, None] - seen.pop("join_at_s"),
        "start_s": last[AttemptStarted, 0] - first[OpenStore, 0],
        "verdict_s": lost_s - seen.pop("silent_at_s"),
        "switch_s": last[AttemptStarted, 1] - lost_s,
        "failure_s": last[AttemptStarted, 2] - first[RankExited, 1],
        "lost": counts[NodeLost, None],
        "incidents": counts[RecordIncident, None],
    }


# --- torch's c10d rendezvous ----------------------------------------------------------------------------------------


def measure_peer(agents: int, limit_s: float) -> float | None:
    """Seconds until all of so many c10d rendezvous handlers have their rank; None if that takes longer than `limit_s`."""
    script = os.path.join(HERE, "rendezvous_agents.py")
    store = subprocess.Popen([sys.executable, script, "store"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    children = [store]
    try:
        assert store.stdout is not None
        port = int(store.stdout.readline())
        processes = min(8, max(2, agents // 50))
        shares = [agents // processes + (number < agents % processes) for number in range(processes)]
        for share in shares:
            command = [sys.executable, script, "agents", str(port), str(share), str(agents), str(limit_s)]
            children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        _all_say(children[1:], b"ready", 120.0)
        began_s = time.monotonic()
        for child in children[1:]:
            assert child.stdin is not None
            child.stdin.write(b"go\n")
            child.stdin.flush()
        return time.monotonic() - began_s if _all_say(children[1:], b"done", limit_s) else None
    finally:
        for child in children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


def _all_say(children: list[subprocess.Popen[bytes]], word: bytes, limit_s: float) -> bool:
    """Whether all say a word in time."""
    deadline_s = time.monotonic() + limit_s
    waiting = [child.stdout for child in children]
    while waiting:
        readable, _, _ = select.select(waiting, [], [], max(0.0, deadline_s - time.monotonic()))
        if not readable:
            return False
        for pipe in readable:
            assert pipe is not None
            if pipe.readline().strip() != word:
                return False
            waiting.remove(pipe)
    return True


def compare(args: argparse.Namespace, agents: int) -> dict[str, Any]:
    """Measure both in turns: until all agents know their place."""
    ours: list[float] = []
    theirs: list[float] = []
    peer_ended = True
    for _ in range(args.rounds):
        if peer_ended:
            took_s = measure_peer(agents, args.peer_limit_s)
            peer_ended = took_s is not None
            theirs += [took_s] if took_s is not None else []
        ours.append(measure_meeting(args, agents))
    result: dict[str, Any] = {"agents": agents, "robust_run": spread([round(value, 4) for value in ours])}
    if theirs:
        result["c10d"] = spread([round(value, 4) for value in theirs])
        result["ratio"] = round(result["robust_run"]["median"] / result["c10d"]["median"], 4)
    else:
        result["c10d_longer_than_s"] = args.peer_limit_s
    return result


def measure_meeting(args: argparse.Namespace, agents: int) -> float:
    """Seconds from the first dial until every node has been told its place in the first attempt."""
    with tempfile.TemporaryDirectory(prefix="control-plane-") as folder:
        rig = Rig(folder, agents, args.nproc, args.boot)
        try:
            rig.until(lambda: all(fleet.seen for fleet in rig.fleets), "start of the simulated agents")
            rig.rest(0.5)
            began_s = time.monotonic()
            rig.tell_all(do="join")
            rig.until(lambda: rig.heard("started", 0) == rig.nodes, "start")
            return time.monotonic() - began_s
        finally:
            rig.close()


# --- figures --------------------------------------------------------------------------------------------------------


def growth(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exponents between sizes that follow each other: a figure grows as agents to the power of this."""
    found = []
    for small, large in itertools.pairwise(cases):
        base = math.log(large["agents"] / small["agents"])
        names = [name for name in (*COLUMNS, *CPU_COLUMNS) if min(small.get(name, 0.0), large.get(name, 0.0)) > 0]
        exponents = {name: round(math.log(large[name] / small[name]) / base, 2) for name in names}
        found.append({"from": small["agents"], "to": large["agents"], "exponents": exponents})
    return found


def print_tables(cases: list[dict[str, Any]], exponents: list[dict[str, Any]]) -> None:
    """Durations, CPU seconds, and how they grow."""
    rows: list[tuple[str, dict[str, Any]]] = [(f"{case['agents']:,}", case) for case in cases]
    rows += [(f"exponent {each['from']:,}-{each['to']:,}", each["exponents"]) for each in exponents]
    for title, columns in (("", COLUMNS), ("controller's CPU seconds", CPU_COLUMNS)):
        print(f"\n{title or 'agents':<26}" + "".join(f"{text:>14}" for text in columns.values()))
        for label, values in rows:
            print(f"{label:<26}" + "".join(f"{values.get(name, math.nan):>14.2f}" for name in columns))
    for case in cases:
        text = f"{case['agents']:,} agents: {case['heartbeats_per_s']:.0f} heartbeats a second, slowest answer"
        text += f" {case['slowest_steady_answer_s']:.3f} s; with switch and failure {case['slowest_answer_s']:.2f} s,"
        text += f" {case['lapsed_leases']} leases ran out, {case['lost']} node lost of 1, the controller waited"
        text += f" {case['waited_for_core_s']:.2f} s for a core"
        went_on = {2: ", nothing restarted by the resume", 3: ", RESTARTED BY THE RESUME"}
        print(f"{text}{went_on.get(case.get('attempt_after_resume', 0), '')}, {case['dials']} dials", flush=True)


def main() -> int:
    """Run the bench. Returns 1 if any run failed."""
    parser = argparse.ArgumentParser(description="What one controller bears.")
    parser.add_argument("--agents", type=numbers, default=[100, 1000, 10000], help="sizes, as in 100,1000")
    parser.add_argument("--nproc", type=int, default=1, help="workers a node says it has")
    parser.add_argument(
        "--resume-up-to",
        type=int,
        default=1000,
        help="no controller is killed above this: simulated agents dial slowly",
    )
    parser.add_argument("--steady-s", type=float, default=10.0, help="how long heartbeats are watched")
    parser.add_argument("--peer", type=numbers, default=[], help="sizes to compare with torch's c10d rendezvous")
    parser.add_argument("--peer-limit-s", type=float, default=120.0, help="longest wait for it")
    parser.add_argument("--rounds", type=int, default=3, help="of that comparison")
    parser.add_argument("--boot", default=BOOT, help="Python code that is the controller, for profilers")
    parser.add_argument("--keep", default="", help="folder that gets a copy of the newest run's files")
    args = parser.parse_args()
    unwind_on_sigterm()
    raise_file_limit()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    cases: list[dict[str, Any]] = []
    meetings: list[dict[str, Any]] = []
    failures: list[str] = []
    for agents in args.agents:
        try:
            cases.append(measure(args, agents))
            print(json.dumps(cases[-1]), flush=True)
        except BenchError as error:
            failures.append(f"{agents} agents: {error}")
            print(failures[-1], flush=True)
    exponents = growth(cases)
    print_tables(cases, exponents)
    for agents in args.peer:
        try:
            meetings.append(compare(args, agents))
            print(json.dumps(meetings[-1]), flush=True)
        except BenchError as error:
            failures.append(f"meeting of {agents} agents: {error}")
            print(failures[-1], flush=True)
    result = {"bench": "control_plane", "schema": 1, "machine": machine(), "cases": cases, "growth": exponents}
    print()
    print(json.dumps(result | {"meetings": meetings, "failures": failures}), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
