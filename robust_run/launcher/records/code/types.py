"""The words of code versions: what a tree of code is, what of a folder is left where it is, and how much is taken at most.

What the core and the journal say of versions (`CodeVersion`, `CodeUse`, `Ledger`) is in `launcher.types`.
"""

from __future__ import annotations

import msgspec

SCHEMA = 1
"""Of a tree as it is written to disk."""


class CodeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One file of a tree, or one symbolic link inside it."""

    path: str
    """Relative to the tree's root, `/` between names; see `names.check_path`."""
    digest: str = ""
    """SHA-256 of its content, hexadecimal; empty for a link."""
    size_bytes: int = 0
    executable: bool = False
    link: str = ""
    """Where a link leads, relative to its own folder and never out of the tree; empty: it is a file."""


class CodeTree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code of a job at one moment, without what is in its files."""

    schema: int = SCHEMA
    files: tuple[CodeFile, ...] = ()
    """By path, ascending."""


class Left(msgspec.Struct, frozen=True):
    """A file or folder that is no part of a tree: it stays where it is, and copies of the tree lead to it."""

    path: str
    reason: str
    """A clause: `is ignored`, `is larger than 1 MiB`, ..."""


HOLDS_RUNS = "holds run directories"
"""Reason of a folder that copies do not lead to as a whole, only to what else is in it: each would lead back to itself."""


class CodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is code. A folder that holds more is no folder of code, and is not captured."""

    most_files: int = 5000
    most_bytes: int = 32 << 20
    largest_file_bytes: int = 1 << 20
    """Larger files are left in place."""
    most_entries: int = 20_000
    """Files and folders that are looked at."""
    deepest: int = 40
    patience_s: float = 0.5
    """A file system that takes longer than this to be looked through is too slow to wait for."""


LIMITS = CodeLimits()


class CapturedCode(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken from a folder or a commit."""

    tree: CodeTree
    left: tuple[Left, ...] = ()
    commit: str = ""
    """Of git, where the folder is in a work tree; 40 or 64 hexadecimal digits."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """How one file differs between two trees."""

    path: str
    kind: str
    """added, removed, changed, mode."""
    added: int = 0
    removed: int = 0
    """Lines."""


class TreeParts(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a tree on its way to another node."""

    tree: str
    """Its id."""
    manifest: bytes = b""
    """The tree as it is written to disk; empty: it came before."""
    objects: tuple[bytes, ...] = ()
    """Contents of files, in no order: a content is known by its digest."""
    missing: str = ""
    """Why it cannot be had; empty: it can."""
