"""What tests of fetching ahead share: a checkpoint on a web server, and the memory that it is fetched into."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from counting_server import Counting

from robust_run.ckpt_io.address import parse
from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.area import Area, UnitTable, make
from robust_run.ckpt_io.ahead.fetching import Fetcher, FromPeer
from robust_run.ckpt_io.ahead.taking import VARIABLE
from robust_run.ckpt_io.finding import find_manifest
from robust_run.ckpt_io.reading import Wanted, open_checkpoint
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.targets import Targets
from robust_run.store.opening import open_store

UNIT = 1 << 20
CONTENT = {"x": os.urandom(6 * UNIT + 5), "empty": b"", "y": os.urandom(3)}
TOTAL = sum(map(len, CONTENT.values()))


@dataclass
class Ground:
    """One checkpoint, and who fetches it."""

    url: str
    server: Counting
    folder: Path
    memory: int = field(default_factory=make)

    def __post_init__(self) -> None:
        where, primary = parse(self.url), open_store(self.url)
        self.found = find_manifest(where, primary, open_store)
        self.layouts = manifests.layouts(self.found.manifest)
        self.table = UnitTable(self.layouts)
        self.targets = Targets(where, self.found, primary, open_store)
        self.server.sent_bytes = 0

    @property
    def path(self) -> str:
        """Where readers find the memory."""
        return f"/proc/{os.getpid()}/fd/{self.memory}"

    def area(self) -> Area:
        """Return the memory, begun."""
        return Area(self.memory, self.table, self.found.header)

    def fetcher(
        self,
        area: Area,
        room_bytes: int | None = None,
        share: rules.Share | None = None,
        peer: FromPeer | None = None,
        is_ours: Callable[[int], bool] = lambda _: True,
        belongs: list[int] | None = None,
        plan: rules.FetchPlan | None = None,
    ) -> Fetcher:
        """Return what fetches into it."""
        plan = plan or rules.plan(self.table.sizes, share or rules.Share(), room_bytes, belongs)
        return Fetcher(area, self.layouts, self.targets, plan, rules.Pace(None), peer, is_ours)

    def read(self, environment: dict[str, str]) -> dict[str, bytes]:
        """Return the whole checkpoint, as a worker with such an environment reads it."""
        before = os.environ.get(VARIABLE)
        os.environ.update(environment)
        try:
            with open_checkpoint(self.url) as checkpoint:
                held = {}
                for index, file in enumerate(checkpoint.manifest.files):
                    buffer = bytearray(file.size_bytes)
                    checkpoint.read([Wanted(index, 0, memoryview(buffer))])
                    held[file.name] = bytes(buffer)
                return held
        finally:
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before

    def taken(self) -> dict[str, bytes]:
        """Return the whole checkpoint, read by somebody who was told of the memory."""
        return self.read({VARIABLE: self.path})

    @property
    def sent_bytes(self) -> int:
        """What the server sent of parts, since the manifest was read here."""
        return self.server.sent_bytes
