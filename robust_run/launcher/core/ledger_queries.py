"""Queries of the code ledger: what runs, what an update is built on, what may be staged, and how versions are called. Pure.

Nothing here changes a ledger; that is left to `core.code_ledger`.
"""

from __future__ import annotations

from robust_run.launcher.model.code_events import (
    CodeRecord,
    CodeUse,
    CodeVersion,
    Ledger,
)

#: Digits of a tree's id that people see.
SHORT = 10

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
    """Return what makes two versions the same."""
    return version.tree, version.settings, version.env


def is_pending(ledger: Ledger, version: CodeVersion) -> bool:
    """Whether this is what waits already: then only its time is new."""
    record = record_of(ledger, ledger.pending)
    return (
        record is not None and record.version.number == version.number and _content(record.version) == _content(version)
    )


def is_blamed(ledger: Ledger, kind: str) -> bool:
    """Whether an attempt that ended like this is the doing of the version on probation."""
    return on_probation(ledger) is not None and kind in BLAMED


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
    """Return the same with the updates that are part of it: a reader must learn of all that changed."""
    runs = on_probation(ledger)
    unproven = {runs.number} & ancestors(ledger, version.number) if runs is not None else set()
    numbers = sorted({*parts_of(ledger, version.number), *unproven}, reverse=True)
    named = [words(ledger.records[number - 1].version) for number in numbers[:PARTS_NAMED]]
    more = [f"{len(numbers) - PARTS_NAMED} more"] if len(numbers) > PARTS_NAMED else []
    return words(version) + (f", with {', '.join(named + more)} in it," if named else "")


def left_words(left_out: tuple[str, ...]) -> str:
    """Return what of the code is not kept, as a sentence."""
    more = ", ...; robust code show 1 lists them" if len(left_out) > LEFT_NAMED else ""
    return f"not part of the code that is kept, so that edits reach later attempts: {', '.join(left_out[:LEFT_NAMED])}{more}"
