"""A real Slurm for as long as one command runs on its login node: `python tests/slurm_shell.py --nodes 4 -- bash`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from slurm_cluster import SlurmCluster, why_not
from slurm_conf import Knobs


def main() -> int:
    """Run a command on the login node of a fresh cluster; return its exit code."""
    parser = argparse.ArgumentParser(description="A real Slurm for as long as one command runs on its login node.")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=0, help="per node; files like /dev/null")
    parser.add_argument("command", nargs="*", default=["bash"])
    args = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    knobs = Knobs(gpus=args.gpus)
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, SlurmCluster(Path(name), args.nodes, knobs) as slurm:
        inside = ["nsenter", "-t", str(slurm.login._init.pid), *"-n -u -m -i -p --".split()]  # type: ignore[union-attr]
        env = {**os.environ, **slurm.login.environment(), **slurm.env, "SLURM_TEST_FOLDER": name}
        return subprocess.run([*inside, *args.command], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
