"""`robust slurm doctor`: asks a site's Slurm and its nodes, and has the answers judged (see `site`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.slurm import probe
from robust_run.slurm.rules.site import SiteFinding, judge_config, judge_version, read_config
from robust_run.slurm.rules.site_nodes import NodeSaid, judge_nodes
from robust_run.slurm.tools import Tools

ASK_S = 30.0
START_S = 120.0
"""How long a tiny step may wait for its nodes."""
PROBE_S = 30.0
COMMANDS = ("sbatch", "srun", "scontrol", "squeue")


def examine(tools: Tools, env: Mapping[str, str]) -> list[SiteFinding]:
    """Look at the site from here: commands, versions, settings."""
    missing = [name for name in COMMANDS if not tools.find(name)]
    found = []
    if "sbatch" not in missing or "srun" not in missing:
        program = "srun" if "sbatch" in missing else "sbatch"
        found.append(judge_version(tools.run([program, "--version"], env, ASK_S).out.strip()))
    found += [_missing(name) for name in missing]
    if "scontrol" in missing:
        return found
    ran = tools.run(["scontrol", "show", "config"], env, ASK_S)
    if ran.code != 0:
        return [*found, SiteFinding("bad", "slurmctld", f"does not answer: {ran.sentence}")]
    return found + judge_config(read_config(ran.out))


def too_many(tools: Tools, env: Mapping[str, str], nodes: int) -> SiteFinding | None:
    """Return what is wrong with a step on more nodes than the site has, None if it has them or cannot be asked."""
    ran = tools.run(["sinfo", "--noheader", "--format=%D"], env, ASK_S) if tools.find("sinfo") else None
    counts = ran.out.split() if ran is not None and ran.code == 0 else []
    if not counts or not all(each.isdecimal() for each in counts) or nodes <= sum(map(int, counts)):
        return None
    return SiteFinding(
        "bad", f"a step of {nodes} nodes", f"the site has {sum(map(int, counts))}: give a smaller --nodes"
    )


def examine_nodes(
    tools: Tools, env: Mapping[str, str], nodes: int, options: Sequence[str], folder: str
) -> list[SiteFinding]:
    """Run a tiny step on so many nodes and judge what they say. `folder` is empty, shared by all of them."""
    options = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--immediate={START_S:.0f}", *options]
    options += [
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--time=5",
        "--job-name=robust-doctor",
    ]
    step = [sys.executable, "-I", "-S", os.path.abspath(probe.__file__), folder, str(nodes), str(PROBE_S)]
    if "SLURM_JOB_ID" in env:
        options = ["--overlap", *(option for option in options if not option.startswith(("--immediate", "--time")))]
    ran = tools.run(["srun", *options, *step], env, START_S + 2 * PROBE_S)
    said = [each for line in ran.out.splitlines() if (each := _said(line)) is not None]
    if not said:
        return [SiteFinding("bad", f"a step of {nodes} nodes", f"did not run: {ran.sentence or ran.code}")]
    return judge_nodes(said, nodes, folder)


def _said(line: str) -> NodeSaid | None:
    try:
        return msgspec.json.decode(line, type=NodeSaid)
    except msgspec.DecodeError:
        return None


def _missing(name: str) -> SiteFinding:
    if name in ("sbatch", "srun"):
        return SiteFinding("bad", name, "not in PATH: run this on a login node, or load the site's module of Slurm")
    what = (
        "settings cannot be read, jobs cannot requeue themselves"
        if name == "scontrol"
        else "the end of jobs is not known ahead"
    )
    return SiteFinding("warning", name, f"not in PATH ({what}); in a container, mount Slurm's commands into it")
