"""The wake chain through a queue and on inside a member: what the worker does that others wait for. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec

from robust_run.orchestrator.rules.waits import ARROW, also, apart, line_of, member_of
from robust_run.report.pages.next_steps import MOST_PIDS, stopped_in
from robust_run.roles.view_words import MemberView, RolesView, WaitChain
from robust_run.terminal import plain
from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.types import RankSight, Scene
from robust_run.tracer.verdict import chains
from robust_run.tracer.verdict.frozen import thawing


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What a member's own launcher says of one of its ranks."""

    text: str
    hints: tuple[str, ...] = ()
    """What may be typed, a line each."""


class WholeChain(msgspec.Struct, frozen=True, kw_only=True):
    """A chain across roles, to its end."""

    line: str
    chain: WaitChain
    run: str = ""
    """Run directory of the member at its end, below that of the job; empty: it ends at nobody who runs."""
    inside: str = ""
    """What goes on there."""
    hints: tuple[str, ...] = ()


def asked_at(chain: WaitChain, view: RolesView) -> MemberView | None:
    """Return the member that a chain ends at, and whose launcher is to be asked; None: there is nobody to ask."""
    last = chain.steps[-1]
    if last.does not in ("works", "rests"):
        return None
    name = member_of(last.worker)
    found = next((member for role in view.roles for member in role.members if member.name == name), None)
    return found if found is not None and found.run else None


def rank_of(chain: WaitChain) -> int:
    """Return which rank of its member the last worker of a chain is."""
    number = chain.steps[-1].worker.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def inside_of(scene: Scene, rank: int) -> Inside:
    """Return what a rank does; of one that waits for others of its member, whom they wait for, and what that one does."""
    sights = {sight.rank: sight for sight in scene.ranks}
    if rank not in sights:
        silent = f", and no answer came from {', '.join(scene.silent_nodes)}" if scene.silent_nodes else ""
        return Inside(text=f"its rank {rank} is not seen{silent}")
    drawn = chains(scene).drawn
    through = next(
        (chain for chain in drawn if rank in chain.waiters or (chain.is_circle and rank in chain.ranks)), None
    )
    if through is None:
        own = next((chain for chain in drawn if rank in chain.ranks and not chain.is_circle), None)
        more = f"{ARROW}{own.line}" if own is not None and not own.waiters else ""
        return Inside(text=f"its rank {rank}: {_does(sights[rank])}{more}", hints=_hints(scene, (rank,)))
    text = f"its {through.line}"
    ends = [one for one in through.ranks if one in sights]
    if ends and not through.is_circle:
        does = _does(sights[ends[0]])
        how, _, where = does.partition(" in ")
        text += f"{ARROW}its rank {ends[0]}: {how if where and where in through.line else does}"
    return Inside(text=text, hints=_hints(scene, through.ranks))


def _does(sight: RankSight) -> str:
    if sight.exit_code is not None:
        return f"has ended with exit code {sight.exit_code}"
    if not sight.processes:
        return "nothing is seen of its processes"
    return activity_of(sight).reason


def _hints(scene: Scene, ranks: tuple[int, ...]) -> tuple[str, ...]:
    frozen = thawing([sight for sight in scene.ranks if sight.rank in ranks])
    stopped = (
        f"stopped on {node}: type there: kill -CONT {' '.join(map(str, pids[:MOST_PIDS]))}"
        for node, pids in stopped_in(scene.ranks, list(ranks)).items()
    )
    return tuple(plain(line) for line in (*stopped, *frozen))


def elsewhere(member: MemberView, path: str, here: str) -> Inside:
    """Return what is said of a member whose files are not to be seen. `path`: of its run directory; `here`: this node."""
    others = [node for node in member.nodes if node != here] or list(member.nodes)
    command = f"robust why {shlex.quote(path)}"
    if not others:
        return Inside(
            text=f"its files are not to be seen here ({path})", hints=(f"where {member.name} runs: {command}",)
        )
    return Inside(
        text=f"it runs on {others[0]}, and its files are not to be seen here", hints=(f"on {others[0]}: {command}",)
    )


def whole(view: RolesView, found: Mapping[str, Mapping[int, Inside]]) -> tuple[WholeChain, ...]:
    """Return the chains of a job with their ends. `found`: what launchers said, by member and rank."""
    made = []
    for chain in view.chains:
        member = asked_at(chain, view)
        inside = found.get(member.name, {}).get(rank_of(chain)) if member is not None else None
        line = line_of(chain) + (f"{ARROW}{inside.text}" if inside is not None else "")
        line += _why_away(chain, view)
        made.append(
            WholeChain(
                line=line,
                chain=chain,
                run=member.run if member is not None else "",
                inside=inside.text if inside is not None else "",
                hints=inside.hints if inside is not None else (),
            )
        )
    return tuple(made)


def _why_away(chain: WaitChain, view: RolesView) -> str:
    """Return the last word of a member that does not run, of a chain that ends there."""
    last = chain.steps[-1]
    if last.does != "is_away":
        return ""
    name = member_of(last.worker)
    found = next((member.sentence for role in view.roles for member in role.members if member.name == name), "")
    return f" ({found})" if found else ""


def lines_of(view: RolesView, made: tuple[WholeChain, ...], run: str) -> list[str]:
    """Return the chains for people. `run`: how the job's run directory is called in a command."""
    if not made and view.waits:  # a leader of an earlier version, which does not tell them step by step
        return [plain(line) for line in view.waits]
    if not made:
        up = [member for role in view.roles for member in role.members if member.state == "running" and member.run]
        lines = ["no worker has waited for long at a queue"]
        if up:
            lines.append(f"what ranks of one member wait for: robust why {shlex.quote(f'{run}/{up[0].run}')}")
        return lines
    lines = []
    by_chain = {id(each.chain): each for each in made}
    shown = [(by_chain[id(chain)], others) for chain, others in apart([each.chain for each in made])]
    for each, others in shown:
        lines += [plain(each.line + also(others)), *(f"  {hint}" for hint in each.hints)]
    runs = dict.fromkeys(each.run for each, _ in shown if each.run)
    lines += [f"more: robust stacks {shlex.quote(f'{run}/{one}')}" for one in list(runs)[:4]]
    return lines
