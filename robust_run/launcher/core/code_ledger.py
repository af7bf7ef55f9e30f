"""Ledger of code versions: which one runs, which is suspect, which is trusted. Pure.

A version is staged (pending), runs from the next attempt on (probation), and is trusted when all nodes of one attempt have
survived its first steps at the usual pace, or the job has ended well. Whatever else ends an attempt of it that a change of code
can bring about takes it back, and all that was built on it.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from robust_run.launcher.model.code_events import (
    CodeRecord,
    CodeUse,
    CodeVersion,
    Fate,
    Ledger,
)

#: Digits of a tree's id that people see.
SHORT = 10
#: Steps that take so much longer than the trusted version's are a fault of the new one.
SLOW_FACTOR = 2.0
#: Shorter differences are noise.
SLOW_BY_S = 0.005

GONE_WITH = "which was rolled back"

#: Of the files that are not kept, so many are named on the console.
LEFT_NAMED = 3
#: Of the updates that are part of one, so many are named.
PARTS_NAMED = 5

#: Verdicts that a change of code can bring about. A lost node or a broken platform is none of its doing.
BLAMED = frozenset({"crash", "code", "nan", "hang", "mismatch", "desync", "comm_stall", "slow", "unknown"})


def record_of(ledger: Ledger, number: int) -> CodeRecord | None:
    """Return a version's record, None where there is none."""
    return ledger.records[number - 1] if 0 < number <= len(ledger.records) else None


def head(ledger: Ledger) -> int:
    """Return the version that an update is built on: what is pending, else what runs; 0 if nothing was captured."""
    return ledger.pending or ledger.running


def use(ledger: Ledger) -> CodeUse | None:
    """Return what the newest attempt runs; None where nothing was captured."""
    record = record_of(ledger, ledger.running)
    if record is None:
        return None
    version = record.version
    return CodeUse(
        number=version.number,
        tree=version.tree,
        settings=version.settings,
        env=version.env,
        on_probation=record.fate == "probation",
        is_only=len(ledger.records) == 1,
        makes_steps=ledger.makes_steps,
        rolled_back=tuple(
            label(each.version.number, each.version.tree)
            for each in ledger.records
            if each.fate == "rolled_back" and each.first_attempt >= 0
        ),
    )


def label(number: int, tree: str) -> str:
    """Return what ROBUST_CODE_VERSION says of a version."""
    return f"{number}-{tree[:SHORT]}" if tree else str(number)


def on_probation(ledger: Ledger) -> CodeVersion | None:
    """Return the version that runs and is suspect, None if none is."""
    record = record_of(ledger, ledger.running)
    return record.version if record is not None and record.fate == "probation" else None


def captured(ledger: Ledger, version: CodeVersion, attempt: int) -> Ledger:
    """The first version: trusted, since there is nothing to go back to. A second capture changes nothing."""
    if ledger.records or version.number != 1:
        return ledger
    record = CodeRecord(
        version=version, fate="trusted", why="the job was started with it", first_attempt=max(attempt, 0)
    )
    return Ledger(records=(record,), running=1, trusted=1)


def why_not(ledger: Ledger, version: CodeVersion) -> str:
    """Return why a version cannot be staged now, as a clause; empty: it can."""
    if not ledger.records:
        return "the code of this job was not captured"
    if version.number != len(ledger.records) + 1 or not version.parents or version.parents[0] != head(ledger):
        return f"it was made from version {version.parents[0] if version.parents else 0}, and {head(ledger)} is the newest now"
    for number in version.parents:
        record = record_of(ledger, number)
        if record is None:
            return f"there is no version {number}"
    failed = None if version.again else failed_twin(ledger, version)
    if failed is not None:
        return f"it is what version {failed.version.number} was, which was rolled back: {failed.why}; --again tries it again"
    return ""


def why_no_code(ledger: Ledger) -> str:
    """Return why the code of a job cannot be updated, for people; empty: it can."""
    first = record_of(ledger, 1)
    if first is None:
        return "the code of this job has not been captured yet; try again in a moment"
    if not first.version.tree:
        return (
            "this job runs in place, its code is not kept (--code in-place, or robust events says why); "
            "only --set and --env can be updated"
        )
    return ""


def failed_twin(ledger: Ledger, version: CodeVersion) -> CodeRecord | None:
    """Return the record of the same version if that failed: it is not tried again."""
    return next(
        (
            each
            for each in reversed(ledger.records)
            if each.fate == "rolled_back" and each.first_attempt >= 0 and _content(each.version) == _content(version)
        ),
        None,
    )


def _content(version: CodeVersion) -> tuple[str, dict[str, str], dict[str, str]]:
    return version.tree, version.settings, version.env


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


def is_pending(ledger: Ledger, version: CodeVersion) -> bool:
    """Whether this is what waits already: then only its time is new."""
    record = record_of(ledger, ledger.pending)
    return (
        record is not None and record.version.number == version.number and _content(record.version) == _content(version)
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

    `steps`: how many; 0: it makes none, and lived for long enough. `nodes`: all of the attempt.
    """
    fewest = steps if ledger.fewest_steps < 0 else min(steps, ledger.fewest_steps)
    ledger = msgspec.structs.replace(ledger, survived={**ledger.survived, node: step_s}, fewest_steps=fewest)
    if not all(each in ledger.survived for each in nodes):
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


def is_blamed(ledger: Ledger, kind: str) -> bool:
    """Whether an attempt that ended like this is the doing of the version on probation."""
    return on_probation(ledger) is not None and kind in BLAMED


def rolled_back(ledger: Ledger, why: str) -> Ledger:
    """The version on probation failed: back to the trusted one. What is pending was built on it, and falls with it."""
    version = on_probation(ledger)
    if version is None:
        return ledger
    ledger = _with_its_parts(ledger, version.number, why)
    ledger = msgspec.structs.replace(ledger, running=ledger.trusted)
    return _pending_falls(ledger, version.number)


def _with_its_parts(ledger: Ledger, number: int, why: str) -> Ledger:
    """A version is rolled back. What was merged into it goes with it, though nobody knows which of them failed."""
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


def parts_of(ledger: Ledger, number: int) -> list[int]:
    """Return the versions that a version has in it and that never were trusted by themselves: updates that it was merged from.

    Only since the last trusted one before it, and in their order.
    """
    records = [record_of(ledger, each) for each in sorted(ancestors(ledger, number))]
    since = max((each.version.number for each in records if each is not None and each.fate == "trusted"), default=0)
    return [
        each.version.number
        for each in records
        if each is not None and each.fate == "merged" and each.version.number > since
    ]


def ancestors(ledger: Ledger, number: int) -> set[int]:
    """Return the versions that a version was made from, near and far."""
    found: set[int] = set()
    ahead = [number]
    while ahead:
        record = record_of(ledger, ahead.pop())
        for parent in record.version.parents if record is not None else ():
            if parent not in found and parent < (record.version.number if record is not None else 0):
                found.add(parent)
                ahead.append(parent)
    return found


def taken_back(ledger: Ledger, to: int, why: str) -> Ledger:
    """Somebody wants an earlier version: it runs from the next attempt on, and is trusted, as it was before."""
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


def rollback_target(ledger: Ledger, to: int) -> CodeRecord | None:
    """Return the record that a rollback leads to; None if there is nothing to take back, or it never was trusted."""
    if to:
        record = record_of(ledger, to)
        is_there = record is not None and to == ledger.running and not ledger.pending
        return record if record is not None and record.fate == "trusted" and not is_there else None
    if ledger.pending or on_probation(ledger) is not None:
        return record_of(ledger, ledger.trusted)
    before = [each for each in ledger.records[: max(ledger.running - 1, 0)] if each.fate == "trusted"]
    return before[-1] if before else None


def base_of(ledger: Ledger, source: str) -> int:
    """Return the version that changes from this place are taken to begin at: the newest that came from it and was not taken
    back, else the first.
    """
    place = source.partition("@")[0]
    alive = {head(ledger), *ancestors(ledger, head(ledger))}
    for record in reversed(ledger.records):
        if (
            record.version.number in alive
            and record.fate != "rolled_back"
            and record.version.source.partition("@")[0] == place
        ):
            return record.version.number
    return 1 if ledger.records else 0


def words(version: CodeVersion) -> str:
    """Return a version as people call it: what changed, who did it, and why."""
    about = "; ".join(
        filter(
            None,
            (
                version.summary,
                f"by {version.by}" if version.by else "",
                repr(version.note) if version.note else "",
            ),
        )
    )
    return f"version {version.number}" + (f" ({about})" if about else "")


def all_words(ledger: Ledger, version: CodeVersion) -> str:
    """Return the same with the updates that are part of it: whoever reads it must learn of all that changed."""
    numbers = parts_of(ledger, version.number)[::-1]
    named = [words(ledger.records[number - 1].version) for number in numbers[:PARTS_NAMED]]
    more = [f"{len(numbers) - PARTS_NAMED} more"] if len(numbers) > PARTS_NAMED else []
    return words(version) + (f", with {', '.join(named + more)} in it," if named else "")


def left_words(left_out: tuple[str, ...]) -> str:
    """Return what of the code is not kept, as a sentence."""
    more = ", ...; robust code show 1 lists them" if len(left_out) > LEFT_NAMED else ""
    return f"not part of the code that is kept, so that edits reach later attempts: {', '.join(left_out[:LEFT_NAMED])}{more}"


def _fated(ledger: Ledger, number: int, fate: Fate, why: str, attempt: int | None = None) -> Ledger:
    records = list(ledger.records)
    record = records[number - 1]
    first = record.first_attempt if attempt is None else attempt
    records[number - 1] = msgspec.structs.replace(record, fate=fate, why=why, first_attempt=first)
    return msgspec.structs.replace(ledger, records=tuple(records))
