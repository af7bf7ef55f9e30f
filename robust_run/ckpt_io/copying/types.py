"""The words of copying. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from robust_run.ckpt_io.copying.journal import Journal

Kind = Literal["rrck", "dcp", "file", "folder"]
"""One of ours, a folder of torch.distributed.checkpoint, a single file, a folder of files."""
Progress = Callable[[int], None]
"""Is told of bytes that are done."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    kind: Kind
    source: str
    destination: str
    size_bytes: int
    fetched_bytes: int
    kept_bytes: int
    """Were there already, from a copy that was cut short."""
    wrong: tuple[str, ...] = ()
    """With `verify_only`: what differs."""


@dataclass(frozen=True)
class Task:
    """A unit: where it goes, and how to get it."""

    file: int
    unit: int
    path: str
    """Of the local file."""
    offset_bytes: int
    size_bytes: int
    digest: bytes | None
    """Of its bytes; None where the source has no digests."""
    fetch: Callable[[], bytes | bytearray | memoryview]


@dataclass(frozen=True)
class Plan:
    """A whole copy."""

    kind: Kind
    source: str
    destination: str
    identity: str
    journal_path: str
    tasks: Callable[[], Iterator[Task]]
    sizes: dict[str, int]
    """Length of each local file."""
    finish: Callable[[], None]
    is_same: Callable[[Journal], bool]
    """Whether the source still is what a journal was written of."""
    threads: int
    commit_record: str = ""
    """A file that would be replaced last: where it is, there is another checkpoint."""
    final_of: dict[str, str] = field(default_factory=dict)
    """Where files lie once the copy is whole, if not in the same place."""

    roots: tuple[str, ...] = ()
    """Folders (a single file: the file) that it goes to. Below them, there may be no links."""
    source_paths: tuple[str, ...] = ()
    """Files on this machine that it comes from."""
    is_occupied: Callable[[], bool] = lambda: False
    """Whether the very same checkpoint was committed there: its good units stay. Raises UserError if it must not be written."""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(self.sizes.values())
