"""What jobs of tests install: a virtual environment of their own, tiny wheels, and commands that count how often they are run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, run, running
from snapshot.packages import make_wheel

import robust_run

#: Says what a worker finds: the package, whether it is where it was installed to, the attempt.
LOOK = """
import os, sys
import tiny
print(tiny.VALUE, tiny.__file__.startswith(sys.prefix), os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
"""

#: `pip install -r FILE`, where all that can be installed lies unpacked.
QUICK_PIP = """#!/bin/sh -e
while read -r wanted; do cp -r "{unpacked}/$wanted/." "{site}"; done < "$3"
"""


class Ground:
    """A folder with a virtual environment in which robust_run runs, a store, and two versions of a package."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self._is_ours = python == sys.executable
        self.env_folder = folder / "env"
        if self._is_ours:
            venv.create(self.env_folder, symlinks=True)
        else:
            subprocess.run([python, "-m", "venv", "--without-pip", str(self.env_folder)], check=True, timeout=120)
        self.python = str(self.env_folder / "bin/python")
        self.site = next(self.env_folder.glob("lib/python3*/site-packages"))
        outer = [str(Path(robust_run.__file__).parents[1]), *site.getsitepackages()]
        (self.site / "outer.pth").write_text("\n".join(outer) + "\n")
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        for version in ("1.0", "2.0"):
            wheel = make_wheel(self.wheels, "tiny", version, {"tiny/__init__.py": f"VALUE = {float(version):g}\n"})
            zipfile.ZipFile(wheel).extractall(folder / f"unpacked/tiny=={version}")
        self._quick_pip = folder / "quick/pip"
        self._quick_pip.parent.mkdir()
        self._quick_pip.write_text(QUICK_PIP.format(unpacked=folder / "unpacked", site=self.site))
        self._quick_pip.chmod(0o755)
        self.requirements = folder / "requirements.txt"
        self.requirements.write_text("tiny==1.0\n")
        self.counted = folder / "count"
        for name in ("work", "home"):
            (folder / name).mkdir()

    @property
    def pip(self) -> str:
        """The beginning of a command that installs."""
        of_others = [sys.executable, "-m", "pip", "--python", self.python]  # our own installer, for the environment
        words = [*(of_others if self._is_ours else (self.python, "-m", "pip")), "install", "-q", "--no-index"]
        words += ["--find-links", str(self.wheels), "--no-cache-dir", "--root-user-action=ignore"]
        return shlex.join(words)

    @property
    def command(self) -> str:
        """Install what the requirements name, and count. (A file that a command names decides its key; a variable's does not.)

        By a pip that only copies: the real one takes a second of a CPU, more than all else that a job does here.
        """
        return self._counted(f"{self._quick_pip} install")

    @property
    def real_command(self) -> str:
        """The same by the real pip."""
        return self._counted(self.pip)

    def _counted(self, install: str) -> str:
        return f"{install} -r {shlex.quote(str(self.requirements))} && echo ran >> $TEST_FOLDER/count"

    @property
    def runs(self) -> int:
        """How often the commands were run."""
        return len(self.counted.read_text().splitlines()) if self.counted.exists() else 0

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def options(self, command: str | None = None, cache: str = "cache") -> tuple[str, ...]:
        """The options of a job with a set-up, one node's cache."""
        return (
            "--setup", self.command if command is None else command,
            "--setup-store", str(self.store), "--image-cache", str(self.folder / cache),
        )  # fmt: skip

    def keywords(self, **env: str) -> dict[str, Any]:
        """How a job is started here."""
        own = {"TMPDIR": str(self.folder / "work"), "HOME": str(self.folder / "home"), "XDG_CACHE_HOME": ""}
        own["TEST_FOLDER"] = str(self.folder)
        return {"python": self.python, "env": {**own, **env}}

    def run(self, *arguments: str, prefix: tuple[str, ...] = (), **env: str) -> tuple[int, Job]:
        """Run a job to its end, and check that nothing is left of it."""
        return run(self.folder, *arguments, prefix=prefix, **self.keywords(**env))

    def running(self, *arguments: str, prefix: tuple[str, ...] = (), **env: str) -> AbstractContextManager[Job]:
        """Start a job."""
        return running(self.folder, *arguments, prefix=prefix, **self.keywords(**env))

    def left(self) -> list[str]:
        """What builds and restores have left where they work, and in the environment."""
        stages = (self.folder / "cache/snapshots/stage").glob("*")
        return [*os.listdir(self.folder / "work"), *map(str, stages), *map(str, self.site.glob("tiny*"))]


def report_of(job: Job) -> dict[str, Any]:
    """What the run directory says of the set-up of the one node."""
    (path,) = [each for each in (job.run_dir / "setup").glob("*.json") if each.name != "snapshot.json"]
    return dict(json.loads(path.read_text()))


def is_mounted(folder: Path) -> bool:
    """Whether anything is mounted below a folder, as this process sees it."""
    return str(folder) in Path("/proc/self/mountinfo").read_text()


def needs_setups() -> None:
    """Skip where no snapshot can be made without changing the environment: no squashfs tools, no overlays."""
    for tool in ("mksquashfs", "unsquashfs"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (squashfs-tools)")
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    try:
        possible = subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        possible = False
    if not possible:
        pytest.skip("no private mount namespace for us")


@contextmanager
def ground_at(folder: Path, python: str = sys.executable) -> Iterator[Ground]:
    """An environment, a store and packages; nothing of it is mounted for others, then or later."""
    needs_setups()
    made = Ground(folder, python)
    yield made
    assert not is_mounted(folder)
    assert made.left() == []
