"""Run by tests as another user: builds a snapshot of a new environment and restores it on each rung that users have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from snapshot.environments import LOOK, Environment, check_look

from robust_run.clock import SystemClock
from robust_run.snapshot import restoring
from robust_run.snapshot.building import build
from robust_run.store.opening import open_store


def main(folder: str) -> None:
    """Do it in a folder that is ours."""
    environment = Environment(Path(folder), sys.executable)
    plan = environment.plan(environment.setup())
    store = open_store(os.path.join(folder, "store"))
    manifest = build(plan, store, None, clock=SystemClock())
    said = {}
    for rungs in (("mount", "userns"), ("extract",)):
        options = restoring.RestoreOptions(cache=os.path.join(folder, "node"), memory=None, rungs=rungs)  # type: ignore[arg-type]
        with restoring.restore(plan, manifest, store, options) as restored:
            code = f"import os, sys; print(os.getuid(), os.getgid(), file=sys.stderr)\n{LOOK}"
            done = subprocess.run(
                restored.command([environment.python, "-c", code], "/"), env=environment.environment(),
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            check_look(environment, json.loads(done.stdout))
            said[restored.choice.rung] = done.stderr.strip()
    print(json.dumps({**said, "after": os.path.exists(f"{environment.site}/oddpack")}))


if __name__ == "__main__":
    main(sys.argv[1])
