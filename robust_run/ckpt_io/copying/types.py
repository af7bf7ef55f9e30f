"""The words of copying. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from robust_run.ckpt_io.copying.journal import CopyJournal

Kind = Literal["rrck", "dcp", "file", "folder"]
"""One of ours, a folder of torch.distributed.checkpoint, a single file, a folder of files."""
Progress = Callable[[int], None]
"""Is told of bytes that are done."""


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    kind: Kind
    source: str
    destination: str
    size_bytes: int
    fetched_bytes: int
    kept_bytes: int
    """Were there already, from a copy that was cut short."""
    files: int = 0
    """Of the source; of a checkpoint of ours: its parts here."""
    wrong: tuple[str, ...] = ()
    """With `verify_only`: what is missing or differs."""
    extra: tuple[str, ...] = ()
    """With `verify_only`: what lies at the destination and not at the source. It does no harm there."""
    notes: tuple[str, ...] = ()
    """What of the source was not taken, and why."""


@dataclass(frozen=True)
class Task:
    """A unit: where it goes, and how to get it."""

    file: int
    """Its number in the journal."""
    unit: int
    path: str
    """Of the local file."""
    offset_bytes: int
    size_bytes: int
    digest: bytes | None
    """Of its bytes; None where the source has no digests."""
    fetch: Callable[[], bytes | bytearray | memoryview]


@dataclass(frozen=True)
class CopyPlan:
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
    compare: Callable[[], Differences]
    """What differs by names and lengths between what is at the source and what is at the destination, both as they are now."""
    threads: int
    go_on: Callable[[CopyJournal], None] = lambda journal: None  # noqa: ARG005
    """Forget what a journal says of files that are not what they were."""
    check_unchanged: Callable[[], None] = lambda: None
    """Raise CheckpointError if the source changed while it was copied."""
    commit_record: str = ""
    """A file that would be replaced last: where it is, there is another checkpoint."""
    final_of: dict[str, str] = field(default_factory=dict)
    """Where files lie once the copy is whole, if not in the same place."""
    folders: tuple[str, ...] = ()
    """Folders to be made that no file lies in."""
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links to be made, and what they say."""

    roots: tuple[str, ...] = ()
    """Folders (a single file: the file) that it goes to. Below them, there may be no links but those that the source has."""
    source_paths: tuple[str, ...] = ()
    """Files on this machine that it comes from."""
    source_folder: str = ""
    """The folder on this machine, if it is one, that all below is copied of."""
    is_occupied: Callable[[], bool] = lambda: False
    """Whether the very same checkpoint was committed there: its good units stay. Raises UserError if it must not be written."""
    notes: tuple[str, ...] = ()
    """What of the source is not taken."""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class Differences:
    """Between a source and a destination, by names, kinds and lengths."""

    wrong: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    alike: frozenset[str] = frozenset()
    """Paths, as tasks have them, of files whose bytes remain to be compared."""
