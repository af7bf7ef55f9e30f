"""Register of a job's runs, where all its nodes can look: which run the job had last. A node that comes back finds it there.

In a shared folder, `LOG_DIR/.rendezvous-UID/KEY-000003.json` is the third run of the job with that key (`model.job_identity`).
Names are made exclusively, so that of two runs that are founded at the same time one is; who leads a run, and whether it is over,
is said by its own leaders (`folder_records`). In etcd the job's ledger says all of it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.controller.leadership.coordinator import Coordinator
from robust_run.launcher.controller.leadership.folder_files import SharedFiles
from robust_run.launcher.controller.leadership.types import CoordinatorRefused, RunStanding
from robust_run.launcher.model.job_identity import JobIdentity
from robust_run.launcher.records.run_directory import is_run_id

SCHEMA = 1
#: How long the folder may take for one step.
STEP_S = 10.0
_READINGS = 5
"""Tries to read an entry that its successor is just removing."""


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the register. All of it is for people but the first three."""

    schema: int = SCHEMA
    run_id: str
    command: str
    """Digest of what it runs, as `JobIdentity.command`."""
    endpoint: str = ""
    rdzv_id: str = ""
    host: str = ""
    """Where it was founded."""
    founded_unix_s: float = 0.0


class RunOnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The newest run of a job, as a place knows it."""

    run_id: str
    command: str = ""
    """Empty: the place does not say."""
    number: int = 0
    """Its place in the register; 0: it is in none."""
    standing: RunStanding | None = None
    """None: nobody has led it yet, or its directory is gone."""


class JobRuns(Protocol):
    """The register of one job."""

    async def newest(self) -> RunOnRecord | None:
        """Return the newest run; None: none is on record. Raises CoordinatorUnreachable, CoordinatorRefused."""
        ...

    async def enter(self, entry: RunEntry, after: int) -> None:
        """Put a new run on record, as the one after number `after`. Raises UserError if another was faster."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class FolderRuns:
    """The register in a folder that nodes share."""

    def __init__(
        self, files: SharedFiles, key: str, standing_of: Callable[[str], Awaitable[RunStanding | None]], named: str = ""
    ) -> None:
        """`named`: the run id that all nodes were given; empty: none. Its directory counts where the register has nothing."""
        self._files = files
        self._key = key
        self._standing_of = standing_of
        self._named = named

    async def newest(self) -> RunOnRecord | None:
        """See JobRuns."""
        for _ in range(_READINGS):
            number = await self._number()
            if number == 0:
                break
            data = await self._files.read(self._name(number), STEP_S)
            if data is not None:
                entry = decoded_entry(data)
                standing = await self._standing_of(entry.run_id)
                return RunOnRecord(run_id=entry.run_id, command=entry.command, number=number, standing=standing)
        if self._named:
            standing = await self._standing_of(self._named)
            return RunOnRecord(run_id=self._named, standing=standing) if standing is not None else None
        return None

    async def enter(self, entry: RunEntry, after: int) -> None:
        """See JobRuns."""
        if not await self._files.create(self._name(after + 1), msgspec.json.encode(entry), STEP_S):
            raise UserError(
                f"another run of this job, at {entry.endpoint}, was founded at the same moment: start this node again"
            )
        old = [name for name in await self._files.names(STEP_S) if 0 < self._number_of(name) <= after]
        await self._files.remove(old, STEP_S)

    async def close(self) -> None:
        """See JobRuns."""

    async def _number(self) -> int:
        if not await self._files.names(STEP_S):
            return 0  # asking a folder for its newest state would make it
        return max((self._number_of(name) for name in await self._files.names(STEP_S, fresh=True)), default=0)

    def _number_of(self, name: str) -> int:
        found = re.fullmatch(rf"{self._key}-([0-9]{{6,}})\.json", name)
        return int(found[1]) if found else 0

    def _name(self, number: int) -> str:
        return f"{self._key}-{number:06d}.json"


class EtcdRuns:
    """The register of a job whose candidates meet in etcd: its ledger, which the first leader of a run writes."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def newest(self) -> RunOnRecord | None:
        """See JobRuns."""
        standing = await self._coordinator.standing()
        if standing is None:
            return None
        if not is_run_id(standing.run_id):
            raise CoordinatorRefused(f"etcd calls this job's run {standing.run_id[:80]!r}, which is no name of a run")
        return RunOnRecord(run_id=standing.run_id, standing=standing)

    async def enter(self, entry: RunEntry, after: int) -> None:
        """See JobRuns: whoever is elected has done it."""

    async def close(self) -> None:
        """See JobRuns."""
        await self._coordinator.close()


def entry_of(identity: JobIdentity, run_id: str, host: str, now_unix_s: float) -> RunEntry:
    """Return what is put on record of a run."""
    return RunEntry(
        run_id=run_id,
        command=identity.command,
        endpoint=identity.endpoint,
        rdzv_id=identity.rdzv_id,
        host=host,
        founded_unix_s=now_unix_s,
    )


def decoded_entry(data: bytes) -> RunEntry:
    """Return what a file of the register says. Raises CoordinatorRefused for anything else, and for what is newer."""
    try:
        entry = msgspec.json.decode(data, type=RunEntry)
    except msgspec.MsgspecError as error:
        raise CoordinatorRefused(f"the register of this job's runs is damaged: {error}") from error
    if entry.schema > SCHEMA or not is_run_id(entry.run_id):
        what = f"schema {entry.schema}" if entry.schema > SCHEMA else f"a run called {entry.run_id[:80]!r}"
        raise CoordinatorRefused(f"the register of this job's runs has {what}; is a newer robust-run in use elsewhere?")
    return entry
