"""What a voter has on record beside its log: the term, whom it voted for, who the voters are."""

from __future__ import annotations

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError
from robust_run.orchestrator.model.succession_words import Voter

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a voter must not forget."""

    run_id: str
    name: str
    boot: str
    """Of the machine."""
    voters: tuple[Voter, ...]
    term: int = 0
    voted: str = ""


def boot_id(path: str = BOOT_ID) -> str:
    """Return what tells this boot of the machine from others; empty where the kernel does not say."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def read_record(path: str) -> Record | None:
    """Return what is on record; None: nothing is. Raises PlatformError for what cannot be read: it may be a vote."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise PlatformError(f"{path} cannot be read ({error}): this node does not know for whom it voted") from error


def write_record(path: str, record: Record) -> None:
    """Put it on record. Raises OSError."""
    write_file(path, msgspec.json.encode(record), mode=0o600)
