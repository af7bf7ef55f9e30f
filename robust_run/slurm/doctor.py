"""`robust slurm doctor`: asks a site's Slurm and its nodes, and has the answers judged (see `site`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.slurm import probe
from robust_run.slurm.rules.site import SiteFinding, judge_config, judge_version, read_config
from robust_run.slurm.tools import Tools

ASK_S = 30.0
START_S = 120.0
"""How long a tiny step may wait for its nodes."""
PROBE_S = 30.0
COMMANDS = ("sbatch", "srun", "scontrol", "squeue")


class NodeSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What one node of the tiny step found."""

    name: str
    unheard: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    fuse: bool = False
    scontrol: bool = False
    robust_run: bool = False


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


def judge_nodes(said: Sequence[NodeSaid], nodes: int, folder: str) -> list[SiteFinding]:
    """Judge what the nodes of a step said. Pure."""
    place, found = os.path.dirname(folder), []
    said = sorted(said, key=lambda each: (len(each.name), each.name))  # they speak in any order; node-9 before node-10
    if len(said) < nodes:
        found.append(
            SiteFinding(
                "bad", f"{nodes - len(said)} of {nodes} nodes", "said nothing; look at the output of srun on them"
            )
        )
    unheard = [each.name for each in said if each.unheard]
    if unheard:
        advice = "do not see the files of the others there; run from a folder that all nodes share"
        found.append(SiteFinding("bad", f"{place} on {_names(unheard)}", advice))
    else:
        found.append(SiteFinding("ok", f"{place}: shared by {len(said)} nodes"))
    cut = [f"{each.name} to {_names(each.unreachable)}" for each in said if each.unreachable]
    if cut:
        advice = "no TCP connection to a free port: robust-run's agents cannot meet; ask for open ports 15000-32767 between nodes"
        found.append(SiteFinding("bad", "; ".join(cut[:4]), advice))
    elif not unheard:
        found.append(SiteFinding("ok", f"TCP between {len(said)} nodes"))
    for name, missing, advice in (
        (
            "robust-run",
            [each.name for each in said if not each.robust_run],
            "not in PATH; write its whole path after --",
        ),
        (
            "scontrol",
            [each.name for each in said if not each.scontrol],
            "not in PATH: jobs there cannot requeue themselves",
        ),
        (
            "/dev/fuse",
            [each.name for each in said if not each.fuse],
            "not usable: images are copied instead of mounted",
        ),
    ):
        found.append(
            SiteFinding("warning", f"{name} on {_names(missing)}", advice)
            if missing
            else SiteFinding("ok", f"{name} on all nodes")
        )
    return found


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


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
