"""Programs that run as workers of the launcher do: armed, with a steps file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fake_torch import FAKE_TORCH

from robust_run.tracer.files import steps
from robust_run.tracer.files.arming import arm_environment


class Worker:
    """Runs programs as the launcher would: armed, with a steps file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps_file = str(folder / "steps")
        steps.create(self.steps_file)
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def use_fake_torch(self, **changed: str) -> None:
        for name, text in {**FAKE_TORCH, **changed}.items():
            self.write(f"fake/{name}", text)
        self.env["PYTHONPATH"] = str(self.folder / "fake")

    def run(self, *argv: str, armed: bool = True) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **(arm_environment(self.env, self.steps_file) if armed else {})}
        return subprocess.run(argv, env=env, cwd=self.folder, capture_output=True, text=True, timeout=150, check=False)

    def python(self, program: str, *, armed: bool = True, options: tuple[str, ...] = ()):
        return self.run(sys.executable, *options, self.write("program.py", program), "argument", armed=armed)

    @property
    def counted(self) -> int:
        count = steps.read(self.steps_file)
        assert count is not None
        return count.steps
