"""Versions of the code as lines for a terminal. Pure but for the time zone."""

from __future__ import annotations

import time

from robust_run.launcher.core.ledger_queries import parts_of, words
from robust_run.launcher.model.code_events import CodeRecord, Ledger
from robust_run.launcher.operator.views.show import clean
from robust_run.launcher.records.code.types import FileChange

_FATES = {"rolled_back": "rolled back", "probation": "on probation"}


def log_lines(code: Ledger) -> list[str]:
    """Return all versions, the newest last, a line each; what runs is marked."""
    lines = []
    for record in code.records:
        version = record.version
        marks = "*" if version.number == code.running else ">" if version.number == code.pending else " "
        when = time.strftime("%m-%d %H:%M", time.localtime(version.at_unix_s))
        fate = _FATES.get(record.fate, record.fate)
        about = "; ".join(filter(None, (version.summary, f"{version.note!r}" if version.note else "")))
        parts = parts_of(code, version.number) if record.fate != "merged" else []
        about += f" (with {_numbers(parts)})" if parts else ""
        why = f" ({record.why})" if record.why and record.fate in ("rolled_back", "merged") else ""
        short = version.tree[:10] or "in place"
        lines.append(clean(f"{marks}{version.number:>3}  {fate:<12}  {when}  {short:<10}  {version.by}: {about}{why}"))
    if not lines:
        lines.append("no version of the code is on record")
    return lines


def _numbers(numbers: list[int]) -> str:
    return f"version{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def version_lines(record: CodeRecord, code: Ledger, changes: list[FileChange]) -> list[str]:
    """Return all that is known of one version."""
    version = record.version
    runs = ", runs now" if version.number == code.running else ""
    lines = [
        f"version {version.number}: {_FATES.get(record.fate, record.fate)}{runs}"
        + (f": {record.why}" if record.why else ""),
        f"  by       {version.by}, {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(version.at_unix_s))}",
        f"  note     {version.note}" if version.note else "",
        f"  from     {version.source}" + (f", commit {version.commit[:12]}" if version.commit else "")
        if version.source
        else "",
        f"  made of  version {' and '.join(map(str, version.parents))}" if version.parents else "",
        *(f"  with     {words(code.records[number - 1].version)}" for number in parts_of(code, version.number)),
        f"  first    in attempt {record.first_attempt}" if record.first_attempt >= 0 else "",
        f"  code     {version.tree}" if version.tree else "  code     in place, not kept",
        *(f"  left     {each}" for each in version.left_out),
        *(f"  --set    {name}={value}" for name, value in version.settings.items()),
        *(f"  --env    {name}={value}" for name, value in version.env.items()),
        *(f"  {each.kind:<8} {each.path}  +{each.added} -{each.removed}" for each in changes),
    ]
    return [clean(line) for line in lines if line]
