"""What the recovery bench sees of robust-run's warm workers from outside: its journal, and their memory.

Where a robust-run has no warm workers, or its journal does not say how a worker was started, nothing comes of this.
"""

from __future__ import annotations

import collections
import contextlib
import glob
import json
import os
from collections.abc import Iterator
from typing import Any

from sidebyside import OURS, Figures, Job, processes_of, shown, spread

Rungs = dict[str, dict[str, Any]]
"""By how the workers were started: what came of these restarts."""


class Standbys:
    """Looks before each kill and after each restart, at one number of ranks."""

    def __init__(self) -> None:
        self._ready: list[int] = []
        self._private_bytes: dict[str, list[float]] = {"standby": [], "warm_process": []}
        self._outcomes: dict[str, list[str]] = {}
        self._figures: dict[str, Figures] = {}

    def look(self, job: Job, attempt: int) -> None:
        """Just before a kill: how many standby workers wait, and the memory that is theirs alone."""
        workers = set(job.pids)
        if attempt_pids := _started(job, attempt).get("pids"):
            workers.update(attempt_pids)
        living = set(processes_of(job.folder))
        standbys = {event["pid"] for event in events(job.folder, "standby_ready")} & living - workers
        warm = {event["pid"] for event in events(job.folder, "warm_ready")} & living
        self._ready.append(len(standbys))
        for kind, pids in (("standby", standbys), ("warm_process", warm)):
            for pid in pids:
                with contextlib.suppress(OSError):  # it may end at any time
                    self._private_bytes[kind].append(private_bytes(pid))

    def restarted(self, job: Job, attempt: int, outcome: str, durations: dict[str, float]) -> None:
        """After a restart: sort it by how its workers were started; `durations` are empty if it failed."""
        how = _started(job, attempt).get("how")
        if not how:
            return
        rung = "+".join(sorted(set(how)))
        self._outcomes.setdefault(rung, []).append(outcome)
        self._figures.setdefault(rung, Figures()).add(OURS, durations)

    def summary(self) -> dict[str, Any]:
        """Return what there is of `standbys_ready`, `memory` and `resumed`, for the JSON line."""
        result: dict[str, Any] = {}
        memory = {f"{kind}_private_bytes": spread(values) for kind, values in self._private_bytes.items() if values}
        if any(self._ready):
            result["standbys_ready"] = self._ready
        if memory:
            result["memory"] = memory
        if self._outcomes:
            result["resumed"] = self._rungs()
        return result

    def _rungs(self) -> Rungs:
        return {
            rung: {
                "restarts": len(outcomes),
                "outcomes": dict(collections.Counter(outcomes)),
                "figures": {name: by_side[OURS] for name, by_side in self._figures[rung].summary().items()},
            }
            for rung, outcomes in sorted(self._outcomes.items())
        }


def print_standbys(ranks: int, summary: dict[str, Any]) -> None:
    """Say a `Standbys.summary` to people, a line each."""
    if ready := summary.get("standbys_ready"):
        full = sum(count >= ranks for count in ready)
        print(f"  robust-run: a standby worker for every rank was ready before {full} of {len(ready)} kills")
    for name, values in summary.get("memory", {}).items():
        megabytes = {key: values[key] / 1e6 for key in ("median", "min", "max")}
        print(f"  robust-run: {name.removesuffix('_bytes').replace('_', ' ')} memory, MB: {shown(megabytes)}")
    for rung, result in summary.get("resumed", {}).items():
        last = result["figures"].get("first_all_reduce_last_rank_s")
        print(
            f"  robust-run: {result['restarts']} restarts by {rung} {result['outcomes']}, first all_reduce {shown(last)}"
        )


# --- what can be seen -----------------------------------------------------------------------------------------------


def events(folder: str, kind: str) -> Iterator[dict[str, Any]]:
    """Events of a kind in the journal of the one job in this folder, in order. None without a journal."""
    for pattern in ("robust-runs/*/journal.jsonl", "robust-run-*/journal.jsonl"):
        for path in glob.glob(os.path.join(folder, pattern)):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    with contextlib.suppress(ValueError):  # the last line may be half written
                        event = json.loads(line).get("event") or {}
                        if event.get("type") == kind:
                            yield event


def _started(job: Job, attempt: int) -> dict[str, Any]:
    """Return the event that says an attempt runs; empty if there is none."""
    return next((event for event in events(job.folder, "attempt_started") if event.get("attempt") == attempt), {})


def private_bytes(pid: int) -> int:
    """Memory that ends with the process: pages no other process has. Raises OSError if it is gone."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        fields = [line.split() for line in file]
    return 1024 * sum(int(words[1]) for words in fields if words[0] in ("Private_Clean:", "Private_Dirty:"))
