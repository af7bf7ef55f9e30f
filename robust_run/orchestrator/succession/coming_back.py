"""A node whose `robust-run` is started anew while its job goes on: it looks for that before it founds one.

How it is known that the job goes on. A run directory here names the voters of a run that has no end on record, and one of them
says that it leads that very run, over a connection whose ends both know the job's secret. Nothing else is believed: a voter that
is there and leads nothing may be about to (an election takes 10 s), so it is asked again until nothing of the run can be alive
without a leader (`LEASE_S`, `KILL_S`); then the node does what it would have done.

What looks the same and is not. A run that is over, or whose nodes are gone: nobody answers, and no time is lost but a dial.
Another run of the same job: its leader names that one. Who starts the same job (endpoint, --rdzv-id, secret) a second time on its
endpoint's own node, after another node has taken over, takes part in the one that runs; it would have been two at the same
checkpoints. Under Slurm all processes of an earlier start have ended, so nobody looks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from robust_run.errors import RobustRunError
from robust_run.orchestrator import journal
from robust_run.orchestrator.model.node_words import KILL_S, LEASE_S, NODE, NodeWelcome, Several, ToNode
from robust_run.orchestrator.model.succession_words import Voter
from robust_run.orchestrator.nodes.dialing import Call, dial
from robust_run.orchestrator.succession.record import read_record
from robust_run.roles.words import Me, ToWorker

FOLDER = "voters"
#: So many runs are looked at, the newest first.
MOST_RUNS = 3
ANSWER_S = 3.0
AGAIN_S = 1.0
LEADERLESS_S = LEASE_S + KILL_S + 5.0

Answer = Literal["leads", "is there", "none"]


@dataclass(frozen=True)
class Earlier:
    """A run that this node was part of, or may have been. `folder`: its run directory here."""

    folder: str
    voters: tuple[Voter, ...]

    @property
    def run_id(self) -> str:
        """Its name."""
        return os.path.basename(self.folder)


async def find(log_dir: str, meeting: Several, leaderless_s: float = LEADERLESS_S) -> Earlier | None:
    """Return the run that goes on without this node; None: none does."""
    call = Call(meeting.secret, meeting.tls)
    for earlier in list(runs(log_dir, meeting.name)):
        if await _goes_on(earlier, meeting.name, call, leaderless_s):
            return earlier
    return None


def runs(log_dir: str, name: str) -> Iterator[Earlier]:
    """Yield runs with voters of which no end is on record, the newest first."""
    found: list[tuple[float, str, str]] = []
    try:
        names = os.listdir(log_dir)
    except OSError:
        return
    for run in names:
        folder = os.path.join(log_dir, run)
        try:
            records = [each for each in os.listdir(os.path.join(folder, FOLDER)) if each.endswith(".json")]
            record = f"{name}.json" if f"{name}.json" in records else min(records, default="")
            if record:
                path = os.path.join(folder, FOLDER, record)
                found.append((os.stat(path).st_mtime, folder, path))
        except OSError:
            continue
    for _, folder, path in sorted(found, reverse=True)[:MOST_RUNS]:
        try:
            end = journal.ending(os.path.join(folder, journal.NAME))
            kept = read_record(path)
        except RobustRunError:
            continue  # of another version
        if kept is not None and kept.run_id == os.path.basename(folder) and (end is None or end.finish is None):
            yield Earlier(folder, kept.voters)


async def _goes_on(earlier: Earlier, name: str, call: Call, leaderless_s: float) -> bool:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + leaderless_s
    others = [voter for voter in earlier.voters if voter.name != name]
    while True:
        answers = await asyncio.gather(*(_ask(voter, earlier.run_id, call) for voter in others))
        if "leads" in answers:
            return True
        if "is there" not in answers or loop.time() > until_s:
            return False
        await asyncio.sleep(AGAIN_S)


async def _ask(voter: Voter, run_id: str, call: Call) -> Answer:
    me = Me(role=NODE, index=0, rank=0, serial=os.getpid(), attempt=0)
    try:
        line = await dial((voter.address, voter.port), call, me, ToWorker | ToNode, ANSWER_S)
    except ConnectionResetError:
        return "is there"  # and hung up: it does not lead
    except (OSError, asyncio.TimeoutError, RobustRunError):
        return "none"
    try:
        word = await asyncio.wait_for(line.next(), ANSWER_S)
    except (OSError, asyncio.TimeoutError, RobustRunError):
        return "none"
    finally:
        line.abort()
    return "leads" if isinstance(word, NodeWelcome) and word.run_id == run_id else "none"
