"""A node whose `robust-run` is started anew while its job goes on: it looks for that before it founds one.

How it is known that the job goes on. A run directory here names voters, the first of which is this job's own endpoint; no end of
that run is on record; and one of them says that it leads that very run, over a connection whose ends both know the job's secret.
A voter of it that leads nothing may be about to (an election takes 10 s), or lack this node's vote: a node that has one comes
back at once, any other asks again until nothing of the run can be alive without a leader (`LEASE_S`, `KILL_S`). What listens and
does not answer may have no CPU, or be another program: it is asked for a shorter while. Then, and where nobody of the run is
there, twice, the node does what it would have done.

What looks the same and is not. A run that is over, or whose nodes are gone: nobody listens, or what listens is no voter of it;
that costs a second. Another job with the same id and secret: it has another endpoint. Who starts the same job a second time on
its endpoint's own node, after another node has taken over, takes part in the one that runs; they would have been two at the same
checkpoints. `--found` begins a new one all the same. Under Slurm all processes of an earlier start have ended, so nobody looks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from robust_run.errors import RobustRunError
from robust_run.orchestrator import journal
from robust_run.orchestrator.model.node_words import KILL_S, LEASE_S, Several
from robust_run.orchestrator.model.succession_words import ASKS, InRun, Voter
from robust_run.orchestrator.nodes.dialing import Call, dial
from robust_run.orchestrator.succession.record import boot_id, is_here, read_record
from robust_run.own_folder import check_run, check_way
from robust_run.roles.words import Me, ToWorker

FOLDER = "voters"
#: So many runs of one endpoint are asked for, the newest first.
MOST_RUNS = 5
CONNECT_S = 2.0
ANSWER_S = 5.0
AGAIN_S = 1.0
#: So long a run may be without a leader, and what listens may say nothing.
LEADERLESS_S = LEASE_S + KILL_S + 5.0
SILENT_S = 10.0

Answer = Literal["leads", "is there", "silent", "none"]


@dataclass(frozen=True)
class Earlier:
    """A run that this node was part of, or may have been. `folder`: its run directory here."""

    folder: str
    voters: tuple[Voter, ...]
    why_void: str = ""
    """Why this node has no vote in it any more, where it had one."""
    has_vote: bool = False

    @property
    def run_id(self) -> str:
        """Its name."""
        return os.path.basename(self.folder)


async def find(
    log_dir: str,
    meeting: Several,
    say: Callable[[str], None],
    leaderless_s: float = LEADERLESS_S,
    silent_s: float = SILENT_S,
) -> Earlier | None:
    """Return the run that goes on without this node; None: none does."""
    call, loop = Call(meeting.secret, meeting.tls), asyncio.get_running_loop()
    left, until_s, rounds = list(runs(log_dir, meeting)), loop.time() + leaderless_s, 0
    while left and loop.time() < until_s:
        answers = await asyncio.gather(*(_of_run(each, meeting.name, call) for each in left))
        asked = list(zip(left, answers, strict=True))
        for each, answer in asked:
            if answer == "leads" or (answer == "is there" and each.has_vote):
                return each
        rounds += 1
        if rounds > 1:
            dead = ("none",) if loop.time() < until_s - leaderless_s + silent_s else ("none", "silent")
            left = [each for each, answer in asked if answer not in dead]
        if rounds == 3 and "is there" in answers:
            say(f"nodes of the run {left[0].run_id} are here, and none leads it: it is waited for {leaderless_s:.0f} s")
        if left:
            await asyncio.sleep(AGAIN_S)
    return None


def runs(log_dir: str, meeting: Several) -> Iterator[Earlier]:
    """Yield runs of this job's endpoint of which no end is on record, the newest first."""
    found: list[tuple[float, Earlier]] = []
    try:
        check_way(log_dir)
        names = os.listdir(log_dir)
    except (OSError, RobustRunError):
        return
    for name in names:
        with suppress(OSError, RobustRunError):  # of another version, or of somebody else
            earlier = _run_in(os.path.join(log_dir, name), meeting)
            if earlier is not None:
                found.append((os.stat(os.path.join(earlier.folder, FOLDER)).st_mtime, earlier))
    count = 0
    for _, earlier in sorted(found, key=lambda each: each[0], reverse=True):
        with suppress(RobustRunError):
            end = journal.ending(os.path.join(earlier.folder, journal.NAME)) if count < MOST_RUNS else None
            if count < MOST_RUNS and (end is None or end.finish is None):
                count += 1
                yield earlier


def _run_in(folder: str, meeting: Several) -> Earlier | None:
    """Return what is known of a run. Raises OSError, RobustRunError."""
    records = [each for each in os.listdir(os.path.join(folder, FOLDER)) if each.endswith(".json")]
    mine = f"{meeting.name}.json"
    if not records:
        return None
    check_run(folder, "")
    kept = read_record(os.path.join(folder, FOLDER, mine if mine in records else min(records)))
    if kept is None or kept.run_id != os.path.basename(folder) or not kept.voters:
        return None
    first = kept.voters[0]
    if (first.address, first.port) != (meeting.host, meeting.port):
        return None
    seat = next((voter for voter in kept.voters if voter.name == meeting.name), None)
    moved = f"others know it by the address {seat.address}, which is none of this machine's" if seat else ""
    why_void = "" if seat is None or is_here(seat.address) else moved
    has_vote = kept.name == meeting.name and kept.boot == boot_id() and not why_void
    return Earlier(folder, kept.voters, why_void, has_vote)


async def _of_run(earlier: Earlier, name: str, call: Call) -> Answer:
    others = [voter for voter in earlier.voters if voter.name != name]
    answers = await asyncio.gather(*(_ask(voter, earlier.run_id, call) for voter in others))
    best: tuple[Answer, ...] = ("leads", "is there", "silent")
    return next((answer for answer in best if answer in answers), "none")


async def _ask(voter: Voter, run_id: str, call: Call) -> Answer:
    where = (voter.address, voter.port)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*where), CONNECT_S)
        writer.close()
    except (OSError, asyncio.TimeoutError):
        return "none"
    me = Me(role=ASKS, index=0, rank=0, serial=os.getpid(), attempt=0)
    try:
        line = await dial(where, call, me, ToWorker | InRun, ANSWER_S)
        try:
            word = await asyncio.wait_for(line.next(), ANSWER_S)
        finally:
            line.abort()
    except asyncio.TimeoutError:
        return "silent"
    except (OSError, RobustRunError):
        return "none"
    if not isinstance(word, InRun) or word.run_id != run_id:
        return "none"
    return "leads" if word.leads else "is there"
