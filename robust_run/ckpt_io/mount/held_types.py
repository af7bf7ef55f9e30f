"""The words of a mount that a job holds: what its agent and the two processes that make it say to each other, JSON each."""

from __future__ import annotations

from typing import Literal

import msgspec

#: Variables of the rank in whose name it is read: for the reader's notes of damage (`ckpt_io.notes`), and what is fetched ahead.
TOLD = ("ROBUST_RESUME", "ROBUST_RUN_DIR", "TORCHELASTIC_RESTART_COUNT", "RANK", "ROBUST_CKPT_FETCHED")


Way = Literal["root", "user", "open"]
"""In a mount namespace; in one within a user namespace; for all processes of this user, by fusermount3."""
WAYS: tuple[Way, ...] = ("root", "user", "open")


class PlacingOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to mount."""

    point: str
    """Absolute path of an empty folder, as it is where workers run."""
    source: str
    """What the mount says it shows."""
    namespaces: tuple[str, ...] = ()
    """Files of the mount namespace that workers run in and, if there is one, of its user namespace; empty: make new ones."""
    ways: tuple[Way, ...] = WAYS
    """Of making new ones, the best first."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of that. Descriptors come with it: of FUSE and, of new namespaces, of the mount and the user namespace."""

    failed: str = ""
    device: str = ""
    """Number of the file system, MAJOR:MINOR."""


class HeldOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is served."""

    url: str
    """A folder of checkpoints; it need not be there yet."""
    cache_bytes: int = 256 << 20
    refresh_s: float = 1.0


class HeldServing(msgspec.Struct, frozen=True, kw_only=True, tag="serving"):
    """The server says once that it serves, or why it cannot."""

    failed: str = ""


class HeldTrouble(msgspec.Struct, frozen=True, kw_only=True, tag="trouble"):
    """A reader was given an error; the reason, as a sentence."""

    sentence: str


class AttemptTold(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt begins: variables of its first rank here, in whose name the server reads."""

    env: dict[str, str]
