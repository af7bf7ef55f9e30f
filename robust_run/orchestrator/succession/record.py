"""What a voter has on record beside its log: the term, whom it voted for, who the voters are."""

from __future__ import annotations

import socket

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

    @property
    def seat(self) -> Voter:
        """This voter, as the others know it."""
        return next(each for each in self.voters if each.name == self.name)


def why_void(record: Record, run_id: str, port: int) -> str:
    """Return why a node has no vote any more that has this on record, and listens on a port; empty if it has."""
    if record.boot != boot_id() or record.run_id != run_id:
        return "this machine was booted since, and may lack what it confirmed"
    if record.seat.port != port:
        return f"others know it by port {record.seat.port}, and it listens on {port}"
    return ""


def is_here(address: str) -> bool:
    """Whether an address, or a name, is this machine's. A pod that is made anew has another one."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as tried:
            tried.bind(where)
    except OSError:
        return False
    return True


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
