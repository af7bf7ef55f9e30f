"""A machine made up of a folder: what checks of command lines may ask, with answers the test chose."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.this_machine import RealFiles
from robust_run.launcher.model.world import World

PYTHON = "/usr/bin/python3"
MOMENT = time.strptime("2026-03-09 14:05:06", "%Y-%m-%d %H:%M:%S")


class Machine:
    """A tree of files under a folder, with `/job/train.py` in it. Paths are the machine's: `/job`, `/dev`, `/sys`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.forbidden: set[tuple[str, int]] = set()
        self.write(PYTHON, mode=0o755)
        self.write("/job/train.py")
        self.write("/tmp/")

    def write(self, path: str, text: str = "", mode: int = 0o644) -> None:
        """Make a file, or a folder if the path ends with a slash."""
        real = Path(f"{self.root}{path}")
        if path.endswith("/"):
            real.mkdir(parents=True, exist_ok=True)
            return
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text)
        real.chmod(mode)

    def forbid(self, path: str, mode: int) -> None:
        """From now on this process may not do this with the path (tests may run as root, who may do anything)."""
        self.forbidden.add((path, mode))

    def world(self, **changes: Any) -> World:
        """Return the world of a process in `/job`."""
        values: dict[str, Any] = {
            "env": {"PATH": "/usr/bin:/bin", "HOME": "/home/ann"},
            "cwd": "/job",
            "executable": PYTHON,
            "library_folders": ("/site",),
            "files": _Guarded(self),
            "cpu_count": lambda: 6,
            "ask_torch": _no_torch,
            "user": "ann",
            "local_time": lambda: MOMENT,
            "random_hex": lambda digits: "0123456789abcdef"[:digits],
        }
        return World(**{**values, **changes})


class _Guarded(RealFiles):
    def __init__(self, machine: Machine) -> None:
        super().__init__(str(machine.root))
        self._machine = machine

    def access(self, path: str, mode: int) -> bool:
        refused = any(path == where and mode & what for where, what in self._machine.forbidden)
        return not refused and super().access(path, mode)


def _no_torch(kind: str) -> int:
    raise UserError(f"this test did not expect torch to be asked for {kind}")
