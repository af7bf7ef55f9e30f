"""What the nodes of the doctor's tiny step said, judged. Of a node that said nothing nothing is known: that is not `ok`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.slurm.rules.hostlist import expand
from robust_run.slurm.rules.site import SiteFinding

MOST_NAMES = 4


class NodeSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What one node of the tiny step found."""

    name: str
    task: int = -1
    """Its number in the step; -1: not said."""
    nodes: str = ""
    """The nodes of the step, as Slurm lists them."""
    unheard: tuple[str, ...] = ()
    """`task N` of those whose files it did not see."""
    unreachable: tuple[str, ...] = ()
    fuse: bool = False
    scontrol: bool = False
    robust_run: bool = False


def judge_nodes(said: Sequence[NodeSaid], nodes: int, folder: str) -> list[SiteFinding]:
    """Judge what the nodes of a step of so many said, in their own order: node-9 before node-10."""
    said = sorted(said, key=lambda each: (len(each.name), each.name))
    place, found = folder.rpartition("/")[0], []
    of = f"{len(said)} of {nodes}" if len(said) < nodes else str(nodes)
    if len(said) < nodes:
        found.append(_silent(said, nodes))
    unheard = [each.name for each in said if _unheard(each, said)]
    if unheard:
        advice = "do not see the files of the others there; run from a folder that all nodes share"
        found.append(SiteFinding("bad", f"{place} on {_names(unheard)}", advice))
    elif len(said) > 1 or nodes == 1:
        found.append(SiteFinding("ok", f"{place}: shared by {of} nodes"))
    cut = [f"{each.name} to {_names(each.unreachable)}" for each in said if each.unreachable]
    if cut:
        advice = "no TCP connection to a free port: robust-run's agents cannot meet; ask for open ports 15000-32767 between nodes"
        found.append(SiteFinding("bad", "; ".join(cut[:MOST_NAMES]), advice))
    elif not unheard and (len(said) > 1 or nodes == 1):
        found.append(SiteFinding("ok", f"TCP between {of} nodes"))
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
        on = "all nodes" if len(said) >= nodes else f"{of} nodes"
        found.append(
            SiteFinding("warning", f"{name} on {_names(missing)}", advice)
            if missing
            else SiteFinding("ok", f"{name} on {on}")
        )
    return found


def _silent(said: Sequence[NodeSaid], nodes: int) -> SiteFinding:
    count = f"{nodes - len(said)} of {nodes} nodes"
    names = _silent_names(said)
    what = f"{_names(names)} ({count})" if len(names) == nodes - len(said) else count
    first = names[0] if names else "NODE"
    return SiteFinding(
        "no answer", what, f"said nothing, so nothing is known of them; srun -w {first} hostname says more"
    )


def _silent_names(said: Sequence[NodeSaid]) -> list[str]:
    try:
        listed = expand(next((each.nodes for each in said if each.nodes), ""))
    except UserError:
        return []
    heard = {each.name for each in said}
    return [name for name in listed if name not in heard]


def _unheard(each: NodeSaid, said: Sequence[NodeSaid]) -> list[str]:
    """Return the tasks that said something and whose files a node did not see: who says nothing at all shows nothing either."""
    spoke = {f"task {other.task}" for other in said}
    if "task -1" in spoke:
        return list(each.unheard)
    return [task for task in each.unheard if task in spoke]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
