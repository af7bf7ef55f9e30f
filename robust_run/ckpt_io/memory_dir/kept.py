"""One name in memory. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from robust_run.ckpt_io.memory_dir.memory_file import MemoryFile

Kind = Literal["file", "link", "folder", "gone"]


@dataclass(eq=False, kw_only=True)
class Kept:
    """A name in memory. `gone`: it was removed, whatever storage has."""

    kind: Kind
    data: MemoryFile | None = None
    """Of a file; never changed once it is here."""
    target: str = ""
    """Of a link."""
    mode: int = 0o644
    number: int = 0
    """Greater than that of all that came before."""
    changed_s: float = 0.0
    modified_ns: int = 0
    is_stored: bool = False
    """Storage has it, too."""
    replaces: int = 0
    """Of `gone`: the number of what storage has under the name; 0: of before this job, or nothing."""
    tries: int = 0
    retry_at_s: float = 0.0
