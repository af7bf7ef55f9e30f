"""The words of a folder in memory: how its process is started, and what it says. Lines of JSON."""

from __future__ import annotations

import msgspec

#: Begins the name of what is half written in storage: not shown in the folder, and removed when it is next opened.
STAGING_PREFIX = ".robust-flush-"


class MemoryDirOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process is told when it is started."""

    point: str
    """Absolute path of the folder, empty."""
    storage: str = ""
    """Absolute path of the folder that is seen below it, and that files are written to; empty: there is none."""
    limit_bytes: int | None = None
    """So much it may hold; None: as much as there is room for."""


class FinishWithin(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """To the process: nobody writes any more, write what storage has not got. It says `Written` when it is done."""

    limit_s: float | None
    """None: for as long as storage takes something."""


class DirNote(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """From the process: a line for people."""

    text: str


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """From the process: how far it is."""

    done_bytes: int
    all_bytes: int


class Written(msgspec.Struct, frozen=True, kw_only=True, tag="written"):
    """From the process: it is done."""

    files: int
    bytes: int
    lost: tuple[str, ...] = ()
    """Names of what is in memory alone, some of them."""
    lost_files: int = 0
    why: str = ""
    """Why it is not in storage."""


FromDir = DirNote | Progress | Written
