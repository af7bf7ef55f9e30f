"""Ledger of code versions: which one runs, which is suspect, which is trusted. Pure.

A version is staged (pending), runs from the next attempt on (probation), and is trusted when all nodes of one attempt have
survived its first steps at the usual pace, or the job has ended well. Every other end of an attempt of it that a change of code
can bring about takes it back, and all that was built on it.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from robust_run.launcher.core.ledger_queries import (
    ancestors,
    is_pending,
    on_probation,
    parts_of,
    record_of,
    rollback_target,
    why_not,
)
from robust_run.launcher.model.code_events import (
    CodeRecord,
    CodeVersion,
    Fate,
    Ledger,
)

#: Steps that take so much longer than the trusted version's are a fault of the new one.
SLOW_FACTOR = 2.0
#: Shorter differences are noise.
SLOW_BY_S = 0.005

GONE_WITH = "which was rolled back"


def captured(ledger: Ledger, version: CodeVersion, attempt: int) -> Ledger:
    """The first version: trusted, since there is nothing to go back to. A second capture changes nothing."""
    if ledger.records or version.number != 1:
        return ledger
    record = CodeRecord(
        version=version, fate="trusted", why="the job was started with it", first_attempt=max(attempt, 0)
    )
    return Ledger(records=(record,), running=1, trusted=1)


def staged(ledger: Ledger, version: CodeVersion, due_unix_s: float) -> Ledger:
    """A checked version waits for the next attempt, and takes along what was pending. What cannot be staged changes nothing."""
    if is_pending(ledger, version):
        return msgspec.structs.replace(ledger, due_unix_s=due_unix_s)
    if why_not(ledger, version):
        return ledger
    if ledger.pending:
        ledger = _fated(ledger, ledger.pending, "merged", f"it is part of version {version.number}")
        dues = [due for due in (ledger.due_unix_s, due_unix_s) if due]
        due_unix_s = min(dues, default=0.0)
    record = CodeRecord(version=version, fate="pending")
    return msgspec.structs.replace(
        ledger, records=(*ledger.records, record), pending=version.number, due_unix_s=due_unix_s
    )


def begun(ledger: Ledger, attempt: int) -> Ledger:
    """An attempt begins: with what is pending, if anything is."""
    if not ledger.records:
        return ledger
    ledger = msgspec.structs.replace(ledger, survived={}, fewest_steps=-1)
    if not ledger.pending:
        return ledger
    number = ledger.pending
    suspect = on_probation(ledger)
    if suspect is not None:  # it goes on as part of the next, and is not proven by itself
        ledger = _fated(ledger, suspect.number, "merged", f"version {number} replaced it before it had proven itself")
    ledger = _fated(ledger, number, "probation", "", attempt)
    return msgspec.structs.replace(ledger, running=number, pending=0, due_unix_s=0.0)


def survived(ledger: Ledger, node: str, steps: int, step_s: float, nodes: Collection[str]) -> tuple[Ledger, str]:
    """A node survived the first steps. Return the ledger and, where the version turns out too slow, that as a sentence.

    `steps`: how many; 0: it makes none, and lived for long enough. `nodes`: all of the attempt. The node is noted in place, and
    nodes are gone through when the last has spoken: with 10,000 of them a copy for each would take longer than all else.
    """
    fewest = steps if ledger.fewest_steps < 0 else min(steps, ledger.fewest_steps)
    ledger.survived[node] = step_s
    if fewest != ledger.fewest_steps:
        ledger = msgspec.structs.replace(ledger, fewest_steps=fewest)
    if len(ledger.survived) < len(nodes) or not all(each in ledger.survived for each in nodes):
        return ledger, ""
    slowest_s = max((ledger.survived[each] for each in nodes), default=0.0)
    version = on_probation(ledger)
    usual_s = ledger.usual_step_s
    if version is None:
        if record_of(ledger, ledger.running) is None:
            return ledger, ""
        return msgspec.structs.replace(ledger, usual_step_s=slowest_s or usual_s, makes_steps=fewest > 0), ""
    if not version.slower and usual_s and slowest_s > usual_s * SLOW_FACTOR and slowest_s - usual_s > SLOW_BY_S:
        return ledger, (
            f"a step takes {slowest_s:.3g} s with version {version.number}, {slowest_s / usual_s:.1f} times the {usual_s:.3g} s "
            f"of version {ledger.trusted}"
        )
    why = (
        "it survived its first steps" if fewest > 0 else "it lived for long enough, and makes no steps that are counted"
    )
    return msgspec.structs.replace(trusted(ledger, slowest_s, why), makes_steps=fewest > 0), ""


def trusted(ledger: Ledger, step_s: float, why: str) -> Ledger:
    """The version that runs has proven itself."""
    version = on_probation(ledger)
    if version is None:
        return ledger
    ledger = _fated(ledger, version.number, "trusted", why)
    return msgspec.structs.replace(ledger, trusted=version.number, usual_step_s=step_s or ledger.usual_step_s)


def rolled_back(ledger: Ledger, why: str) -> Ledger:
    """The version on probation failed: back to the trusted one. What is pending was built on it, and falls with it."""
    version = on_probation(ledger)
    if version is None:
        return ledger
    ledger = _with_its_parts(ledger, version.number, why)
    ledger = msgspec.structs.replace(ledger, running=ledger.trusted)
    return _pending_falls(ledger, version.number)


def _with_its_parts(ledger: Ledger, number: int, why: str) -> Ledger:
    """A version is rolled back. What was merged into it goes with it, though it is not known which of them failed."""
    for part in parts_of(ledger, number):
        if GONE_WITH in ledger.records[part - 1].why:
            continue  # with another before
        ledger = _fated(ledger, part, "merged", f"it was part of version {number}, {GONE_WITH}: {why}")
    return _fated(ledger, number, "rolled_back", why)


def _pending_falls(ledger: Ledger, number: int) -> Ledger:
    if not ledger.pending or number not in ancestors(ledger, ledger.pending):
        return ledger
    why = f"it was built on version {number}, which was rolled back"
    ledger = _with_its_parts(ledger, ledger.pending, why)
    return msgspec.structs.replace(ledger, pending=0, due_unix_s=0.0)


def taken_back(ledger: Ledger, to: int, why: str) -> Ledger:
    """A user wants an earlier version: it runs from the next attempt on, and is trusted, as it was before."""
    target = rollback_target(ledger, to)
    if target is None:
        return ledger
    for record in ledger.records:
        number = record.version.number
        if number in (ledger.pending, ledger.running) and number != target.version.number:
            ledger = _with_its_parts(ledger, number, why)
    return msgspec.structs.replace(
        ledger,
        running=target.version.number,
        trusted=target.version.number,
        pending=0,
        due_unix_s=0.0,
        usual_step_s=0.0,
    )


def _fated(ledger: Ledger, number: int, fate: Fate, why: str, attempt: int | None = None) -> Ledger:
    records = list(ledger.records)
    record = records[number - 1]
    first = record.first_attempt if attempt is None else attempt
    records[number - 1] = msgspec.structs.replace(record, fate=fate, why=why, first_attempt=first)
    return msgspec.structs.replace(ledger, records=tuple(records))
