"""What tests of checks share: results made by hand, real programs, and a mark by which their processes are found."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from robust_run.health.checks.fleet import CheckListener, check
from robust_run.health.checks.history import History
from robust_run.health.checks.plan import Wish
from robust_run.health.checks.session import Session
from robust_run.health.checks.types import NodeFacts, Result
from robust_run.health.diagnostics.here import LocalFleet

MARK = "ROBUST_TEST_CHECKS"


class Ground:
    """Nodes on this machine, whose processes can be found again."""

    def __init__(self, tmp_path: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = tmp_path

    def env(self, *faults: Mapping[str, Any]) -> dict[str, str]:
        """Return an environment for runners, with faults."""
        made = {**os.environ, MARK: self.mark, "GLOO_SOCKET_IFNAME": "lo"}
        return {**made, "ROBUST_CHECK_FAULTS": json.dumps(faults)} if faults else made

    def check(
        self,
        names: Sequence[str],
        wish: Wish,
        *faults: Mapping[str, Any],
        history: History | None = None,
        watcher: CheckListener | None = None,
    ) -> Session:
        """Run checks on nodes of these names."""
        nodes = [NodeFacts(name=name, folder=str(self.folder), interface="lo") for name in names]
        return check(LocalFleet(nodes, self.env(*faults)), wish, history=history, watcher=watcher)

    def left(self) -> list[str]:
        """Return processes of these nodes that still run."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                state = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environment and state not in "ZX":
                found.append(entry)
        return found

    def assert_nothing_left(self, within_s: float = 60.0) -> None:
        """Fail if a process lives on."""
        give_up_at_s = time.monotonic() + within_s
        while left := self.left():
            assert time.monotonic() < give_up_at_s, f"still running: {left}"
            time.sleep(0.02)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """Nodes on this machine; nothing of them may be left at the end."""
    made = Ground(tmp_path)
    yield made
    made.assert_nothing_left()


@pytest.fixture
def result() -> Callable[..., Result]:
    """Return what makes a result of a check that went well."""

    def make(check_name: str, node: str, **more: Any) -> Result:
        return Result(**{"check": check_name, "node": node, "outcome": "done", "kind": "cpu", "passes": 3, **more})

    return make
