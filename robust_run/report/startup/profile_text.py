"""Start-ups across jobs for a terminal: a table by number of nodes, then the nodes that are slow again and again. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from robust_run.report.startup.profile import unread_counts
from robust_run.report.startup.profile_types import UNREAD_MEANINGS, Kind, SlowNode, StartGroup, StartProfile
from robust_run.report.startup.types import PHASES
from robust_run.report.startup.words import BEFORE, SHORT, plain, seconds
from robust_run.terminal import plain as visible

TITLES: dict[Kind, str] = {"first": "first starts", "restart": "restarts"}
_LABEL, _COLUMN = 14, 16
MOST_UNREAD, MOST_SLOW = 4, 16


def summary(profile: StartProfile) -> str:
    """Return how many starts there are, and what was left out: `4,812 starts of 1,990 runs; left out: 3 runs damaged`."""
    said = f"{_count(profile.starts, 'start')} of {_count(profile.runs, 'run')}"
    if profile.unfinished_starts:
        said += f"; {_count(profile.unfinished_starts, 'start')} without a first step of all ranks"
    counts = unread_counts(profile.unread)
    if counts:
        said += f"; left out: {', '.join(f'{count:,} {kind}' for kind, count in sorted(counts.items()))}"
    return said


def lines(profile: StartProfile, width: int) -> Iterator[str]:
    """Yield the lines, `width` characters wide at most where names allow."""
    yield summary(profile)
    for kind, title in TITLES.items():
        groups = [group for group in profile.groups if group.kind == kind]
        if groups:
            yield ""
            yield from _table(title, groups, max(1, (width - _LABEL) // _COLUMN))
    if profile.groups:
        yield ""
        yield "Seconds, median / 95 % of starts; of a phase, of the median rank, where the start had that phase."
    yield ""
    yield from _slow(profile)
    yield from _unread(profile)


def _table(title: str, groups: Sequence[StartGroup], most: int) -> Iterator[str]:
    shown = sorted(sorted(groups, key=lambda group: -group.starts)[:most], key=lambda group: group.nodes)
    yield f"{title:<{_LABEL}}" + "".join(f"{_count(group.nodes, 'node'):>{_COLUMN}}" for group in shown)
    yield f"{'starts':<{_LABEL}}" + "".join(f"{group.starts:>{_COLUMN},}" for group in shown)
    yield f"{'to first step':<{_LABEL}}" + "".join(_cell(group.median_s, group.p95_s) for group in shown)
    for phase in PHASES:
        found = [next((each for each in group.phases if each.phase == phase), None) for group in shown]
        if any(found):
            name = f"  {SHORT[phase]}{' *' if phase in BEFORE else ''}"
            cells = (_cell(each.median_s, each.p95_s) if each else f"{'':>{_COLUMN}}" for each in found)
            yield f"{name:<{_LABEL}}{''.join(cells)}".rstrip()
    if any(each.phase in BEFORE for group in shown for each in group.phases):
        yield "  * before the launcher was started: not in the time to the first step"
    if len(shown) < len(groups):
        left = [f"{group.nodes:,}" for group in groups if group not in shown]
        named = f"{', '.join(left[:MOST_UNREAD])}{' and more' if len(left) > MOST_UNREAD else ''}"
        yield f"  (not shown: starts of {named} nodes; a wider terminal, --json and --html show more)"


def _cell(median_s: float, p95_s: float) -> str:
    return f"{seconds(median_s)} / {seconds(p95_s)}".rjust(_COLUMN)


def _slow(profile: StartProfile) -> Iterator[str]:
    if not profile.starts_compared:
        yield "No node was compared with others: that needs starts of several nodes."
        return
    compared = (
        f"{_count(profile.nodes_compared, 'node')} in {_count(profile.starts_compared, 'start')} of several nodes"
    )
    if not profile.slow_nodes:
        yield f"No node is slow again and again, of {compared}."
        return
    yield f"Slow again and again, of {compared}:"
    for each in profile.slow_nodes[:MOST_SLOW]:
        yield f"  {plain(each.node)}: {sentence(each)}"
    if len(profile.slow_nodes) > MOST_SLOW:
        yield f"  and {len(profile.slow_nodes) - MOST_SLOW} more (--json, --html)"


def sentence(node: SlowNode) -> str:
    """Return how often and by how much: `slow in 31 of 34 starts (29 of 30 runs; others: 2 %): imports 6.2 s more, ...`."""
    parts = [
        f"{SHORT[each.phase]} {seconds(each.extra_s)} s more{f' ({each.times:.1f} times as long)' if each.times else ''}"
        + (f" in {each.starts}" if len(node.phases) > 1 else "")
        for each in node.phases[:3]
    ]
    others = f"others: {100 * node.others_share:.0f} %"
    often = f"slow in {node.slow_starts:,} of {_count(node.starts, 'start')}"
    return f"{often} ({node.runs:,} of {_count(node.runs_compared, 'run')}; {others}): {', '.join(parts)}"


def _unread(profile: StartProfile) -> Iterator[str]:
    if not profile.unread:
        return
    yield ""
    yield "Left out:"
    for kind, count in sorted(unread_counts(profile.unread).items()):
        names = [name_of(each.path) for each in profile.unread if each.kind == kind]
        more = f" and {count - MOST_UNREAD:,} more" if count > MOST_UNREAD else ""
        named = ", ".join(visible(name) for name in names[:MOST_UNREAD])
        yield f"  {count:,} {kind} ({UNREAD_MEANINGS[kind]}): {named}{more}"  # type: ignore[index]


def name_of(path: str) -> str:
    """Return the last part of a path: the name of a run."""
    return path.rstrip("/").rpartition("/")[2] or path


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
