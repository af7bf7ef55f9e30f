"""Run directories of made runs: journals as a controller writes them, of what `fleet_made` says has happened."""

from __future__ import annotations

from pathlib import Path

import msgspec

from robust_run.fleet.words import Component, IncidentFacts, RunFacts
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.job import JobSpec, NodeInfo, OutputStreams, Placement, Progress, Std, VerdictDraft
from robust_run.launcher.records.journal import JournalEntry, JournalHeader
from robust_run.version import RUN_DIR_SCHEMA

#: The monotonic clock began so long before.
AHEAD_S = 1_700_000_000.0
NPROC = 8
#: A rule that speaks of each component.
RULES: dict[Component, str] = {
    "gpu": "nccl_gpu_rank",
    "network": "dead_link",
    "node": "silent_node",
    "code": "user_exception",
    "cpu": "held_up",
}


def write_run(folder: Path, run: RunFacts) -> None:
    """Write the run directory of a run. Each incident ends an attempt; the next one steps a few seconds later."""
    place = folder / run.run_id
    place.mkdir(parents=True)
    spec = JobSpec(
        argv=(run.name,),
        script=run.name,
        is_python=True,
        nproc=NPROC,
        run_id=run.run_id,
        rdzv_id=run.run_id,
        log_dir=str(folder),
        streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
    )
    header = JournalHeader(schema=RUN_DIR_SCHEMA, version="1", host="head", pid=1, job=spec)
    writer = _Writer(run.began_s)
    writer.line(n.JobStarted())
    names = list(run.node_s)
    for at, name in enumerate(names):
        writer.line(n.NodeJoined(node=NodeInfo(id=f"{at:016x}", name=name, nproc=NPROC)))
    writer.start(0, len(names))
    for number, each in enumerate(run.incidents):
        writer.fail(number, each, names)
        writer.start(number + 1, len(names))
    writer.now_s = max(writer.now_s, run.until_s)
    writer.line(a.Finish(exit_code=0, outcome="done"))
    lines = [msgspec.json.encode(each) for each in (header, *writer.entries)]
    (place / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")


class _Writer:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.entries: list[JournalEntry] = []

    def line(self, word: e.Event | a.Action) -> None:
        is_action = isinstance(word, (a.StartAttempt, a.EndAttempt, a.RecordIncident, a.Finish))
        what = "action" if is_action else "event"
        self.entries.append(JournalEntry(at=self.now_s, mono=self.now_s - AHEAD_S, **{what: word}))  # type: ignore[arg-type]

    def start(self, number: int, nodes: int) -> None:
        places = tuple(
            Placement(node=f"{at:016x}", first_rank=NPROC * at, nproc=NPROC, group_rank=at) for at in range(nodes)
        )
        order = a.StartAttempt(
            attempt=number, nodes=nodes, world_size=NPROC * nodes, placements=places, address="h", port=1
        )
        self.line(order)
        self.now_s += 1.0
        for each in places:
            pids = tuple(range(100, 100 + NPROC))
            self.line(e.AttemptStarted(attempt=number, node=each.node, pids=pids, port=1, how=("fork",) * NPROC))
        self.now_s += 5.0
        for each in places:
            self.line(e.FirstStep(attempt=number, node=each.node, at_s=self.now_s - AHEAD_S))

    def fail(self, number: int, incident: IncidentFacts, names: list[str]) -> None:
        self.now_s = max(self.now_s, incident.at_s)
        onset_s = self.now_s
        self.now_s += 2.0
        self.line(a.EndAttempt(attempt=number, signal=15))
        for at in range(len(names)):
            node = f"{at:016x}"
            self.line(e.AttemptEnded(attempt=number, node=node, started_at_s=0.0, ranks=(), progress=Progress()))
        draft = VerdictDraft(
            kind=incident.kind,
            ranks=tuple(NPROC * names.index(name) for name in incident.nodes),
            nodes=incident.nodes,
            confidence="high",
            rule=RULES[incident.component],
            sentence="it failed",
            exit_code=1,
        )
        self.line(
            a.RecordIncident(
                attempt=number,
                symptom=incident.kind,
                onset_at_s=onset_s - AHEAD_S,
                detected_at_s=onset_s + 1.0 - AHEAD_S,
                verdict=draft,
                action="relaunch",
                reason="",
            )
        )
