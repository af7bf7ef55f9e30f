"""Reads why a worker failed from the end of its stderr, or from the error file that torch makes it write. Pure.

Which text decides, in this order:

1. Nothing, if the worker ended well.
2. Words of a program that refused its arguments or was not found, if they are the last thing said.
3. The last traceback of the main thread. Python prints it just before it exits with 1, so with exit code 1 it counts
   however much was printed after it (exit handlers, other threads). With any other end, a signal above all, the program
   may have caught and printed it and gone on, so it counts only if little followed. A traceback that stands below a log
   message was certainly caught once; it is given less room still.
4. What C++ and the C library say when they abort.
5. Tracebacks of other threads and child processes, then single lines near the end that name a known trouble.

In a chain of exceptions the last one is what was raised. Its kind is another matter: one of the user's own that was
raised because of a known trouble (a lost peer, a full disk) is that trouble; and a lost peer noticed while another
exception was being handled (a barrier in an `except` block) explains nothing where that other one does.

KeyboardInterrupt is no finding: the signal that the worker ended with says it better.
"""

from __future__ import annotations

import re

import msgspec

from robust_run.health.patterns import can_heal, kind_of
from robust_run.health.tracebacks import Raised, TracebackReport, clean_lines, find_reports, is_noise
from robust_run.health.troubles import trouble_of
from robust_run.health.types import Finding, FindingKind

MAX_MESSAGE_CHARS = 500
MAX_EXCERPT_LINES = 40
#: Of these at most so many are lines of the message: the traceback must stay visible above it.
MAX_EXCERPT_MESSAGE_LINES = 15
MAX_LINE_CHARS = 500

#: Lines that may follow a traceback that ended the program: (raised freely, found below a log message).
_ANY = -1
_ROOM_AFTER_EXIT_1 = (_ANY, 20)
_ROOM_OTHERWISE = (12, 3)
#: How many of the last lines are searched for words that no traceback carries.
_LAST_LINES = 12
_CRASH_LINES = 200
#: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: as a signal, and as a shell tells it.
_CRASH_EXITS = frozenset(code for number in (4, 5, 6, 7, 8, 11) for code in (-number, 128 + number))
_WARNING = re.compile(r"^\[?W\d{3,4} |^\S[^:]*:\d+: \w*Warning: ")

#: Raised and caught all the time to ask whether something is there: being handled, they explain nothing.
_LOOKUPS = frozenset(
    ("KeyError", "AttributeError", "IndexError", "LookupError", "StopIteration", "ImportError", "ModuleNotFoundError")
) | {"FileNotFoundError", "FileExistsError", "NotImplementedError", "KeyboardInterrupt", "Empty"}
_NOT_FOUND = re.compile(
    r"^[^\n]{0,400}?: (?:can't open file '|No module named |Error while finding module specification for '"
    r"|can't find '__main__' module in )"
)
_PYTHON = re.compile(r"^\S*(?:python|pypy)[\w.]*: ")
_REFUSED = re.compile(r"^[^\s:][^:\n]{0,200}: error: ")
_CRASH = re.compile(
    r"^Fatal Python error: |^terminate called |^(?:free|malloc|realloc|munmap_chunk)\(\): |^double free or corruption"
    r"|^corrupted (?:size|double-linked)|^\*\*\* (?:stack smashing|buffer overflow|SIG[A-Z]+ )|: Assertion `.*' failed"
    r"|Segfault encountered|^(?:Aborted|Segmentation fault|Bus error|Illegal instruction)(?: \(core dumped\))?$"
)


def classify(stderr_tail: str, exit_code: int | None) -> Finding | None:
    """Return what the end of a worker's stderr says about its failure, or None if it says nothing.

    `exit_code` is 0-255 or minus a signal; None while the worker lives. Never raises.
    """
    if exit_code == 0 or not stderr_tail:
        return None
    lines = clean_lines(stderr_tail)
    refused = _refused(lines, exit_code)
    if refused:
        return refused
    reports = find_reports(lines)
    main = next((report for report in reversed(reports) if report.origin == "main"), None)
    if main and _is_final(main, reports, lines, exit_code):
        return _from_report(main, lines)
    side = next((report for report in reversed(reports) if report.origin == "side"), None)
    if side and (exit_code is None or not _is_final(side, reports, lines, exit_code)):
        side = None
    return _crashed(lines, exit_code) or (_from_report(side, lines) if side else _from_last_lines(lines, exit_code))


def from_error_file(text: str) -> Finding | None:
    """Return what a torch elastic error file says, in its present form or its older one; None if it cannot be read."""
    try:
        message = msgspec.json.decode(text)["message"]
    except (msgspec.MsgspecError, RecursionError, LookupError, TypeError, ValueError):
        return None
    callstack = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        callstack = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str):
        return None
    found = classify(callstack, 1) if isinstance(callstack, str) else None
    return found or (classify(message, 1) if "Traceback" in message else None) or _from_summary(message)


def _from_summary(message: str) -> Finding | None:
    """`ValueError: boom`, with no traceback to it."""
    name, _, text = message.strip().partition(": ")
    if not name:
        return None
    if len(name) > 200 or not name.replace(".", "_").isidentifier():
        name, text = "", message.strip()
    kind = kind_of(name, text)
    return Finding(
        kind=kind,
        line=_clip(message.strip().split("\n", 1)[0]),
        exception=name,
        message=text[:MAX_MESSAGE_CHARS],
        excerpt=_excerpt(message.strip().split("\n")),
        heals=can_heal(kind, name, ""),
        trouble=trouble_of(kind, name, text),
    )


def _refused(lines: list[str], exit_code: int | None) -> Finding | None:
    last = [line for line in lines[-_LAST_LINES * 2 :] if line and not is_noise(line)][-_LAST_LINES:]
    if not last:
        return None
    line = last[-1]
    absent = _NOT_FOUND.match(line) is not None and _PYTHON.match(line) is not None
    asked = any(word.lower().startswith("usage: ") for word in last)
    refused = exit_code == 2 and asked and (_REFUSED.match(line) is not None or line.startswith("Error: "))
    missing = exit_code in (126, 127) and any(word in line for word in ("not found", "No such file", "denied"))
    if not (absent or refused or missing):
        return None
    kind: FindingKind = "storage" if kind_of("", line) == "storage" else "usage"
    return Finding(
        kind=kind,
        line=_clip(line),
        excerpt=_excerpt(last[-3:]),
        heals=kind != "usage",
        trouble="storage" if kind == "storage" else "usage",
    )


def _is_final(report: TracebackReport, reports: list[TracebackReport], lines: list[str], exit_code: int | None) -> bool:
    """Whether a report is what ended the program, judged by how much was printed after it."""
    room = (_ROOM_AFTER_EXIT_1 if exit_code == 1 else _ROOM_OTHERWISE)[report.chain[0].logged]
    return room == _ANY or _count_after(report.end, reports, lines) <= room


def _count_after(start: int, reports: list[TracebackReport], lines: list[str]) -> int:
    """Count the lines from `start` on that a program prints only while it goes on."""
    known = {index for report in reports for index in range(report.first, report.end)}
    return sum(
        1
        for index in range(start, len(lines))
        if lines[index] and lines[index][0] not in " \t" and index not in known and not is_noise(lines[index])
    )


def _from_report(report: TracebackReport, lines: list[str]) -> Finding | None:
    raised, decided, kind = _deciding(report)
    if raised.name == "KeyboardInterrupt":
        return None
    shown = _innermost(raised)
    text_end = min(report.end, report.chain[-1].raised + 1 + MAX_EXCERPT_MESSAGE_LINES)
    carries_more = report.members or report.chain[-1].inner
    return Finding(
        kind=kind,
        line=_clip(_innermost(decided).line),
        exception=shown.name,
        message=shown.message[:MAX_MESSAGE_CHARS],
        frame=_frame(report, raised),
        excerpt=_excerpt(lines[report.first : report.end if carries_more else text_end]),
        heals=can_heal(kind, shown.name, shown.frame),
        trouble=trouble_of(kind, _innermost(decided).name, _innermost(decided).message or decided.message),
    )


def _deciding(report: TracebackReport) -> tuple[Raised, Raised, FindingKind]:
    """Return the exception to show, the one that decided the kind, and the kind."""
    last = report.chain[-1]
    if report.members:
        kinds = [(member, _kind(member)) for member in report.members]
        member, kind = next((pair for pair in kinds if pair[1] != "peer_connection"), kinds[0])
        return member, member, kind
    kind = _kind(last)
    if kind == "peer_connection":
        for earlier in reversed(report.chain[:-1]):
            earlier_kind = _kind(earlier)
            if earlier_kind != "peer_connection" and earlier.name.rpartition(".")[2] not in _LOOKUPS:
                return earlier, earlier, earlier_kind
    elif kind == "exception":
        for earlier in reversed(report.chain[:-1]):
            earlier_kind = _kind(earlier)
            if earlier_kind != "exception":
                return last, earlier, earlier_kind
    return last, last, kind


def _kind(raised: Raised) -> FindingKind:
    inner = kind_of(raised.inner.name, raised.inner.message) if raised.inner else "exception"
    return inner if inner != "exception" else kind_of(raised.name, raised.message)


def _innermost(raised: Raised) -> Raised:
    return _innermost(raised.inner) if raised.inner else raised


def _frame(report: TracebackReport, raised: Raised) -> str:
    """The innermost frame; of an exception that another process raised, where that process raised it."""
    earlier = report.chain[-2] if len(report.chain) > 1 and raised is report.chain[-1] else None
    if earlier and raised.link == "cause" and earlier.line == raised.line:
        return earlier.frame  # a process pool: the same exception, raised again where its result was asked for
    return _innermost(raised).frame


def _crashed(lines: list[str], exit_code: int | None) -> Finding | None:
    """What C++ (`what():` says why), the C library or Python itself print when they end the process.

    It may have been a child that shares the stream: where the exit does not confirm it, little may follow.
    """
    start = max(0, len(lines) - _CRASH_LINES)
    first = next((index for index in range(start, len(lines)) if _CRASH.search(lines[index][:MAX_LINE_CHARS])), None)
    if first is None:
        return None
    if exit_code not in _CRASH_EXITS and _count_after(first + 1, [], lines) > _ROOM_OTHERWISE[0]:
        return None
    line, said = lines[first], lines[first : first + 8]
    what = next((text for text in said if text.lstrip().startswith("what(): ")), "")
    kind = kind_of("", "\n".join(said)) if what else "exception"
    kind = "native_crash" if kind == "exception" else kind
    return Finding(
        kind=kind,
        line=_clip(what.strip() or line),
        message=(what.partition("what(): ")[2].strip() if what else line)[:MAX_MESSAGE_CHARS],
        frame="",
        excerpt=_excerpt(lines[first : first + MAX_EXCERPT_LINES]),
        trouble=trouble_of(kind, "", "\n".join(said)),
    )


def _from_last_lines(lines: list[str], exit_code: int | None) -> Finding | None:
    """A known trouble named in one of the last lines. A lost peer only if nothing else is named.

    torch warns of connections that it then makes after all, so a lost peer counts only where the worker itself gave up.
    """
    last = [line for line in lines[-_LAST_LINES * 8 :] if line and not _WARNING.match(line)][-_LAST_LINES:]
    named = [(kind_of("", line[: MAX_LINE_CHARS * 4]), line) for line in last]
    gave_up = exit_code is not None and (exit_code > 0 or exit_code in _CRASH_EXITS)
    known = [pair for pair in named if pair[0] != "exception" and (pair[0] != "peer_connection" or gave_up)]
    if not known:
        return None
    kind, line = next((pair for pair in known if pair[0] != "peer_connection"), known[0])
    return Finding(
        kind=kind,
        line=_clip(line),
        message=line[:MAX_MESSAGE_CHARS],
        excerpt=_excerpt(last),
        trouble=trouble_of(kind, "", line),
    )


def _excerpt(lines: list[str]) -> str:
    end = next((index for index in range(len(lines), 0, -1) if lines[index - 1]), 0)
    return "\n".join(_clip(line) for line in lines[max(0, end - MAX_EXCERPT_LINES) : end])


def _clip(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 1] + "…"
