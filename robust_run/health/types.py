"""The words of health that travel: what can be read from a worker's output, and what sensors say."""

from __future__ import annotations

from typing import Literal

import msgspec

FindingKind = Literal[
    "exception", "peer_connection", "accelerator", "storage", "out_of_memory", "usage", "native_crash"
]

Trouble = Literal[
    "",
    "user_exception",
    "nan",
    "cuda",
    "nccl",
    "ecc",
    "illegal_memory_access",
    "gpu_lost",
    "device_memory",
    "host_memory",
    "storage",
    "peer",
    "native_crash",
    "mismatch",
    "usage",
]


EventKind = Literal["alert", "clear", "note"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing a sensor says. A symptom: what follows from it is said by the rules (`robust_run.health.rules`)."""

    name: str
    """What it is, by dots from the general to the particular: `network.link_down`, `gpu.xid.79`. Rules go by it."""
    kind: EventKind
    """alert: it happened, or it has lasted long enough to be said (again). clear: it is over. note: for people only."""
    subject: str
    """Of what: `GPU 0000:3b:00`, `eth0`, `/data`. Empty: of the node."""
    detail: str
    """One sentence without the subject, for people."""
    at_s: float
    """When it was noticed: seconds of the node's monotonic clock."""
    value: float | None = None
    """What was measured, where it is a number; its unit is in `detail`."""
    limit: float | None = None
    """The threshold that it went over or under."""
    number: int = 0
    """An Xid's number, a killed process's id; 0: none."""


#: Facts of the node, or of a cgroup that others are in, too: people are shown them, and no verdict rests on them.
NOT_THE_JOBS = ("_on_node", "_in_cgroup")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of one worker's stderr says about why it failed. A symptom, not yet a cause."""

    kind: FindingKind
    """exception: the user's own Python exception. peer_connection: a peer went away; never a cause while another
    explanation exists. accelerator: CUDA, NCCL or a device. storage: a file system or object store. out_of_memory: of the
    host or of a device. usage: the program refused its arguments or could not be found. native_crash: a fatal signal's
    report or abort in C++."""
    line: str
    """The one line that decided, without its newline."""
    exception: str = ""
    """Class name of the Python exception, without module for builtins; empty where there was none."""
    message: str = ""
    """The exception's text, at most 500 characters."""
    frame: str = ""
    """`file:line in function` of the innermost frame of the traceback, empty if unknown."""
    excerpt: str = ""
    """The lines a person wants to read (the traceback), at most 40 lines."""
    heals: bool = True
    """False where running the same program again cannot help: a syntax error, a missing import, wrong arguments."""

    trouble: Trouble = ""
    """Finer than `kind`, for the rules (`worker.TROUBLE`); a symptom too. Empty: not looked at."""

    @property
    def signature(self) -> str:
        """Equal for two failures that a person would call the same: numbers and addresses in the message do not count."""
        return f"{self.exception}|{_without_numbers(self.message)}|{self.frame}"


def _without_numbers(text: str) -> str:
    return "".join("#" if c.isdigit() else c for c in text)
