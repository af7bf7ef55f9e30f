"""API messages about code versions. No behaviour."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.code_events import CodeVersion, Ledger

SCHEMA = 1

#: HTTP status of an update that was made from a version which is not the newest any more.
MOVED = 412
LARGEST_PARTS_BYTES = 8 << 20


class CodeView(msgspec.Struct, frozen=True, kw_only=True):
    """All versions of a job, and what an update must know of it."""

    schema: int = SCHEMA
    code: Ledger
    mode: str
    """As `--code` was given."""
    argv: tuple[str, ...] = ()
    is_python: bool = True
    cwd: str = ""
    host: str = ""


class UpdateWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version that was checked, and whose code was sent."""

    version: CodeVersion
    now: bool = False
    due_after_s: float = 0.0
    """0: wait for a failure, however long."""


class RefusedWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An update that came to nothing, for the record."""

    reason: str
    by: str = ""
    note: str = ""


class RollbackWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version that is wanted back."""

    to: int = 0
    reason: str = ""
    by: str = ""
