"""Finds Python tracebacks in the raw end of a stream. Pure.

A stream is not clean: colours, progress bars drawn with carriage returns, torch's `[rank0]: ` before every line, lines
of other threads in between, a beginning that was cut off. What is found is a list of `TracebackReport`s: a report is what Python
prints for one exception, with its causes before it.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Origin = Literal["main", "side", "ignored"]

#: Lines of a message that start at the margin. More than this are no message but what was printed next.
MAX_MESSAGE_LINES = 12
_MAX_INDENTED_LINES = 60
_MAX_ALIEN_LINES = 8
_MAX_SYNTAX_LINES = 8
#: A beginning cut in the middle of a traceback shows its first whole frame within so many lines.
_MAX_CUT_LINES = 4
#: Exceptions carried inside exceptions are followed this deep.
_MAX_DEPTH = 8

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[=>()][0B]?")
_RANK_PREFIX = re.compile(r"^(?:\[[A-Za-z_]{1,40}\d{1,9}\]: ?){1,3}")
_HEADER = "Traceback (most recent call last):"
_BOXED_HEADER = re.compile(r"^[╭+][─-]+ Traceback \(most recent call last\) ")
_FRAME = re.compile(r'^ *(?:> )?File "([^"\n]+)", line (\d+)(?:, in (.+))?$')
_BOXED_FRAME = re.compile(r"^[│|] (\S+):(\d+) in (\S+)")
_SYNTAX_FRAME = re.compile(r'^  File "[^"\n]+", line \d+$')
_RAISED = re.compile(r"^([A-Za-z_][\w.<>]{0,200})(?:: ?(.*))?$", re.DOTALL)
_STRONG_NAME = re.compile(r"[.]|^_*[A-Z]")
_NOT_A_NAME = frozenset(("INFO", "DEBUG", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL", "NOTE", "Usage", "Error"))
_GROUP_HEADER = re.compile(r"^ *\+ Exception Group Traceback \(most recent call last\):$")
_GROUP_SEPARATOR = re.compile(r"^ *\+[-+]+")
_GROUP_GUIDE = re.compile(r"^ *[|+](?: |$)")
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_SIDE = re.compile(
    r"^(?:Exception in thread |Unhandled exception in thread|Process \S+:$|Error in atexit|future: <|handle: <"
    r"|Exception in callback)"
)
_IGNORED = re.compile(r"^(?:Exception ignored |--- Logging error ---|Exception occurred during processing of request)")
_LOGGED = re.compile(r"\b(?:ERROR|WARNING|WARN|CRITICAL|EXCEPTION|FATAL)\b|An error has been caught in function")
#: Tracebacks of helper processes that share the stream and fail because their parent is gone.
_CHILD_FRAME = re.compile(r", in spawn_main$|multiprocessing/(?:resource_tracker|forkserver)\.py\"")
_EMBEDDED_AFTER = re.compile(r'^(?:"""|\'\'\'|-- Process \d+ terminated with the following error:)$')

#: What interpreters, C++ libraries and well-known tools say while a process ends: no sign that the program went on.
_NOISE = re.compile(
    r"^\[?[IWEFC]\d{3,4} \d\d:\d\d:\d\d|^\[[IWEFC] \w+\.\w+:\d+\]|^frame #\d+:|^<omitting |^Exception raised from "
    r"|^\S[^:]*:\d+: \w*Warning: |^sys:1: |^Exception ignored |^Exception in thread |^terminate called|^ *what\(\): "
    r"|^Fatal Python error|^(?:Current t|T)hread 0x|^Extension modules: |^\*\*\* |^wandb: |^double free|^corrupted "
    r"|^(?:free|malloc|realloc|munmap_chunk)\(\): |\bNCCL (?:INFO|WARN) |resource_tracker|^Aborted|^Segmentation fault"
    r"|^Bus error|\d%\||^Current thread's C stack "
)
_LOG_LINE = re.compile(
    r"^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|^(?:INFO|DEBUG|WARNING|ERROR|CRITICAL):|^\[?\d\d:\d\d:\d\d[\]., ]"
)


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """One exception as printed: a traceback and the lines that name it."""

    name: str
    """As printed: with its module, unless it is a builtin or the script's own."""
    message: str
    line: str
    """Name and first line of the message."""
    frame: str
    """`file:line in function`, innermost; empty if there is none."""
    first: int
    """Index of its first line."""
    raised: int
    """Index of the line that names the exception."""
    end: int
    """Index after its last line."""
    link: Literal["", "cause", "context"]
    """How the exception before it led to this one."""
    origin: Origin
    logged: bool
    """Whether a log message stands directly before it: then the program caught it."""
    inner: Raised | None = None
    """The exception of another process or thread that this one carries."""


class TracebackReport(msgspec.Struct, frozen=True):
    """One exception with its causes, oldest first. The last one is what was raised in the end."""

    chain: tuple[Raised, ...]
    members: tuple[Raised, ...] = ()
    """Of an exception group: the exceptions inside."""

    @property
    def origin(self) -> Origin:
        """Who printed it: the main thread; another thread or process (side); a destructor or logger (ignored)."""
        return self.chain[0].origin

    @property
    def first(self) -> int:
        """Index of the first line."""
        return self.chain[0].first

    @property
    def end(self) -> int:
        """Index after the last line."""
        return (self.members or self.chain)[-1].end


def clean_lines(text: str) -> list[str]:
    """Return the lines without colours, carriage returns, torch's rank prefixes and the guides of exception groups."""
    plain = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    lines = plain.split("\n")
    return _without_guides([(_RANK_PREFIX.sub("", line) if line[:1] == "[" else line).rstrip() for line in lines])


def _without_guides(lines: list[str]) -> list[str]:
    in_group = False
    for index, line in enumerate(lines):
        if not in_group and "+ Exception Group" not in line:
            continue
        in_group = _GROUP_HEADER.match(line) is not None or (in_group and line.lstrip()[:1] in ("|", "+"))
        if in_group:
            lines[index] = "" if _GROUP_SEPARATOR.match(line) else _GROUP_GUIDE.sub("", line)
    return lines


def is_noise(line: str) -> bool:
    """Return whether a line says nothing about the program having gone on."""
    return not line or _NOISE.search(line[:500]) is not None


def find_reports(lines: list[str]) -> list[TracebackReport]:
    """Return every complete report, in the order printed."""
    reports: list[TracebackReport] = []
    for raised in _all_raised(lines):
        last = reports[-1] if reports else None
        if last and _is_member(lines, last, raised):
            reports[-1] = TracebackReport(last.chain, (*last.members, raised))
        elif last and raised.link:
            reports[-1] = TracebackReport((*last.chain, raised))
        else:
            reports.append(TracebackReport((raised,)))
    return reports


def _is_member(lines: list[str], report: TracebackReport, raised: Raised) -> bool:
    is_group = lines[report.chain[-1].first].startswith("Exception Group ")
    return is_group and not any(lines[report.end : raised.first])


def _all_raised(lines: list[str]) -> list[Raised]:
    found: list[Raised] = []
    index = 0
    while index < len(lines):
        raised = _read(lines, index) if lines[index] and _starts(lines, index, cut=not found) else None
        if raised:
            found.append(raised)
        index = raised.end if raised else index + 1
    return found


def _starts(lines: list[str], index: int, *, cut: bool) -> bool:
    """Whether a traceback starts here. `cut`: its header may lie before the text. A SyntaxError may have none."""
    line = lines[index]
    if _is_header(line) or _SYNTAX_FRAME.match(line):
        return True
    return cut and index < _MAX_CUT_LINES and _FRAME.match(line) is not None


def _is_header(line: str) -> bool:
    return line.endswith(_HEADER) or _BOXED_HEADER.match(line) is not None


def _read(lines: list[str], first: int, depth: int = 0) -> Raised | None:
    """Return the traceback that starts at `first`, or None if the line that names the exception never came."""
    at = _find_raised(lines, first)
    if at is None:
        return None
    match = _RAISED.match(lines[at])
    assert match
    message, end = _read_message(lines, at, match.group(2) or "")
    before = next((lines[i] for i in range(first - 1, max(-1, first - 4), -1) if lines[i]), "")
    inner = _read_inner(lines, end, depth + 1) if depth < _MAX_DEPTH else None
    return Raised(
        name=match.group(1),
        message=message,
        line=lines[at],
        frame=_innermost_frame(lines, first, at),
        first=first,
        raised=at,
        end=inner.end if inner else end,
        link="cause" if before == _CAUSE else "context" if before == _CONTEXT else "",
        origin=_origin(before, lines[first + 1 : first + 5]),
        logged=_LOGGED.search(before[:500]) is not None,
        inner=inner,
    )


def _origin(before: str, frames: list[str]) -> Origin:
    if _IGNORED.match(before):
        return "ignored"
    return "side" if _SIDE.match(before) or any(_CHILD_FRAME.search(frame) for frame in frames) else "main"


def _find_raised(lines: list[str], first: int) -> int | None:
    """Return the index of the line that names the exception: the first that is not indented, but for alien lines."""
    aliens = 0
    weak: int | None = None
    limit = first + _MAX_SYNTAX_LINES if _SYNTAX_FRAME.match(lines[first]) else len(lines)
    for index in range(first + 1, min(limit, len(lines))):
        line = lines[index]
        if _is_header(line):
            return weak
        if not line or line[0] in " \t>│|╭╰" or (line[0] == "+" and line[1:2] == "-"):
            weak = None if _FRAME.match(line) else weak
            continue
        match = _RAISED.match(line)
        if match and match.group(1) not in _NOT_A_NAME:
            if _STRONG_NAME.search(match.group(1)):
                return index if weak is None or index - weak > 1 else weak
            weak = index if weak is None else weak
        aliens += 1
        if aliens > _MAX_ALIEN_LINES:
            return weak
    return weak


def _innermost_frame(lines: list[str], first: int, at: int) -> str:
    for index in range(at - 1, first - 1, -1):  # a SyntaxError may come without a header: its first line is a frame
        match = _FRAME.match(lines[index]) or _BOXED_FRAME.match(lines[index])
        if match:
            file, number, function = match.groups()
            return f"{file}:{number} in {function}" if function else f"{file}:{number}"
    return ""


def _read_message(lines: list[str], at: int, start: str) -> tuple[str, int]:
    """Return the message and the index after it. Nothing marks its end, so it ends where other text is likely."""
    if lines[at].startswith("KeyError: "):  # always a repr, so one line
        return start, at + 1
    end, indented_end, plain = at + 1, at + 1, 0
    while end < len(lines) and end - at <= _MAX_INDENTED_LINES and not _ends_message(lines[end]):
        if lines[end][0] not in " \t":
            plain += 1
        elif plain == 0:
            indented_end = end + 1
        end += 1
    if plain > MAX_MESSAGE_LINES:
        end = indented_end
    return "\n".join([start, *lines[at + 1 : end]]).strip(), end


def _ends_message(line: str) -> bool:
    if not line or line in ('"""', "'''"):
        return True
    return _is_header(line) or is_noise(line) or _LOG_LINE.match(line) is not None


def _read_inner(lines: list[str], end: int, depth: int) -> Raised | None:
    """Return the traceback that an exception carries in its text from another process or thread, if it does."""
    index = end
    while index < len(lines) and (not lines[index] or _EMBEDDED_AFTER.match(lines[index])):
        index += 1
    if index >= len(lines) or not _is_header(lines[index]):
        return None
    carried = lines[index].startswith("Original ") or (index > 0 and _EMBEDDED_AFTER.match(lines[index - 1]))
    return _read(lines, index, depth) if carried else None
