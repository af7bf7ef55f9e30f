"""Ranks that save and load together: see `checkpoint/ranks_at_work.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from keepers import KeeperGround


class Ranks:
    """The process that forks them."""

    def __init__(self, folder: Path) -> None:
        program = Path(__file__).parent / "checkpoint" / "ranks_at_work.py"
        self.said = folder / "stderr"
        command = [sys.executable, str(program), str(folder)]
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
            )

    def do(self, scenario: str, ranks: int = 2, **env: str) -> list[Any]:
        """What each rank answers."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([scenario, ranks, env]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def values(self, scenario: str, ranks: int = 2, **env: str) -> list[Any]:
        """The same, of ranks none of which fails."""
        answers = self.do(scenario, ranks, **env)
        assert all(answer and "value" in answer for answer in answers), (answers, self.said.read_text()[-3000:])
        return [answer["value"] for answer in answers]


def in_attempt(keeper: KeeperGround, attempt: int, resumed_step: int | None = None, ranks: int = 2) -> dict[str, str]:
    """The environment of its ranks."""
    keeper.begin_attempt(attempt, tuple(range(ranks)), resumed_step)
    env = {"ROBUST_CKPT_MEMORY": keeper.folder, "TORCHELASTIC_RESTART_COUNT": str(attempt), "ROBUST_JOB": "job"}
    return env if resumed_step is None else {**env, "ROBUST_RESUME": f"rrck+memory://0/{resumed_step}"}
