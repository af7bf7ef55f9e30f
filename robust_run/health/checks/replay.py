"""Dual-phase replay: which machine a job fails on, by running the job on groups of machines. Pure.

ByteRobust §4.3: N = m·n machines are grouped by ⌊x/m⌋ and then by x mod n; the one faulty machine is where the failing groups
of both phases meet. With m ≤ n no two machines share both groups. With m = 4, n = 6, {12..15} and {1, 7, 13, 19} meet in 13.

Faults are intermittent, so each group runs in up to `passes` passes, until it fails. What the two phases leave open
(several faulty machines, a phase that saw nothing) is settled by a third one, in which each candidate runs apart from the
others. What even that does not settle is said, not guessed. Numbers of machines that are not m·n leave short groups, which
run later, filled up with machines of groups that passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import isqrt
from typing import Literal

import msgspec

Phase = Literal["rows", "columns", "apart"]
"""rows: by ⌊x/m⌋. columns: by x mod n. apart: one candidate in each group."""

Verdict = Literal["running", "found", "ambiguous", "not_reproduced", "everywhere"]
"""found: these machines, each the only one left that explains a failing group. ambiguous: at least one of these.
everywhere: every group failed, so it is no machine's fault."""

#: Passes of each phase: a fault that shows in half of the passes is missed by 5 of them 3 times in 100.
USUAL_PASSES = 5


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """How machines 0 to count - 1 are grouped twice."""

    count: int
    m: int
    """Size of a row."""
    n: int
    """Number of columns; of rows too, unless `m` > `n`."""

    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups of the first phase."""
        starts = range(0, self.count, self.m)
        return tuple(tuple(range(start, min(start + self.m, self.count))) for start in starts)

    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups of the second phase."""
        return tuple(tuple(range(start, self.count, self.n)) for start in range(min(self.n, self.count)))


def grid(count: int, unit: int = 1, m: int | None = None) -> Grid:
    """Return how to group machines; the size of rows is a multiple of `unit`, what one replica of the model needs.

    Of all that are unique it takes the largest m that divides `count`, unless that leaves rows half as long as they
    could be, or shorter. Raises ValueError for numbers that make no grid.
    """
    if count < 1 or unit < 1 or (m is not None and (m < 1 or m % unit)):
        raise ValueError(f"no grid of {count} machines in rows of {m} with {unit} machines for a replica")
    if m is None:
        largest = max(isqrt(count) // unit * unit, unit)
        even = [size for size in range(unit, largest + 1, unit) if count % size == 0]
        m = even[-1] if even and 2 * even[-1] > largest else largest
    return Grid(count=count, m=m, n=-(-count // m))


class ReplayGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that run one replay together."""

    phase: Phase
    number: int
    members: tuple[int, ...]
    helpers: tuple[int, ...] = ()
    """Machines that passed, to fill it up: they do not count as its members."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What a group has shown so far."""

    phase: Phase
    number: int
    passes: int
    failed: bool


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay under way: everything follows from what was tried."""

    machines: tuple[str, ...]
    grid: Grid
    unit: int = 1
    passes: int = USUAL_PASSES
    tried: tuple[Tried, ...] = ()
    untested: tuple[tuple[Phase, int], ...] = ()
    """Groups that could not be filled up."""


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay says."""

    verdict: Verdict
    machines: tuple[str, ...] = ()
    """At fault for certain, if what `sentence` says it assumes is true."""
    candidates: tuple[str, ...] = ()
    """At least one of these is, where it is ambiguous."""
    sentence: str = ""


def start(machines: Iterable[str], *, unit: int = 1, m: int | None = None, passes: int = USUAL_PASSES) -> Replay:
    """Return a replay to begin with. Raises ValueError for numbers that make no grid, or no passes."""
    names = tuple(machines)
    if passes < 1 or len(set(names)) != len(names):
        raise ValueError(f"no replay of {len(names)} machines ({len(set(names))} names) in {passes} passes")
    return Replay(machines=names, grid=grid(len(names), unit, m), unit=unit, passes=passes)


def next_groups(replay: Replay) -> tuple[ReplayGroup, ...]:
    """Return the groups to run next, at the same time and once each; none if the replay is over.

    Those that fill themselves come first; short ones wait until machines have passed.
    """
    phase = _phase(replay)
    if phase is None:
        return ()
    open_groups = [group for group in _groups(replay, phase) if not _is_settled(replay, group)]
    full = tuple(group for group in open_groups if len(group.members) % replay.unit == 0)
    return full or _filled(replay, open_groups)


def record(replay: Replay, groups: Iterable[ReplayGroup], failed: Collection[int]) -> Replay:
    """Return the replay after a pass of these groups, of which those with these numbers failed."""
    known = {(each.phase, each.number): each for each in replay.tried}
    for group in groups:
        name = (group.phase, group.number)
        before = known.get(name, Tried(phase=group.phase, number=group.number, passes=0, failed=False))
        known[name] = msgspec.structs.replace(
            before, passes=before.passes + 1, failed=before.failed or group.number in failed
        )
    return give_up_short_groups(msgspec.structs.replace(replay, tried=tuple(known.values())))


def give_up_short_groups(replay: Replay) -> Replay:
    """Return the replay without groups for which there are not enough machines that passed."""
    phase = _phase(replay)
    if phase is None or next_groups(replay):
        return replay
    rest = [(phase, group.number) for group in _groups(replay, phase) if not _is_settled(replay, group)]
    return give_up_short_groups(msgspec.structs.replace(replay, untested=(*replay.untested, *rest)))


def conclude(replay: Replay) -> Conclusion:
    """Return what is known by now."""
    if _phase(replay) is not None:
        return Conclusion(verdict="running")
    rows, columns = _failing(replay, "rows"), _failing(replay, "columns")
    done = f"in {replay.passes} passes"
    untested = f"; {len(replay.untested)} groups could not be filled up and did not run" if replay.untested else ""
    if not rows:
        bound = 1 - 0.05 ** (1 / replay.passes)
        said = f"no group failed {done}: a fault that shows in more than {bound:.0%} of passes is excluded with 95 %"
        return Conclusion(verdict="not_reproduced", sentence=said + untested)
    if _is_everywhere(replay):
        said = f"all {len(rows)} groups failed: it is no machine's fault, but of what they all run"
        return Conclusion(verdict="everywhere", sentence=said)
    candidates = _candidates(replay)
    apart = [candidates[number] for number in _failing(replay, "apart")]
    across = f"{_listed(columns)} of {len(replay.grid.columns())} across"
    met = f"group {_listed(rows)} of {len(replay.grid.rows())} failed, and {across}"
    if apart:
        names = _names(replay, apart)
        said = f"{', '.join(names)} failed apart from other suspects"
        return Conclusion(verdict="found", machines=names, sentence=said + untested)
    names = _names(replay, candidates)
    if len(candidates) == 1 and columns:
        return Conclusion(
            verdict="found",
            machines=names,
            sentence=f"{met}: they meet in {names[0]}, if one machine is at fault{untested}",
        )
    said = f"{met}: at least one of {', '.join(names)}; none failed alone {done}{untested}"
    return Conclusion(verdict="ambiguous", candidates=names, sentence=said)


def _phase(replay: Replay) -> Phase | None:
    """Return the phase that is under way, None if there is nothing more to try."""
    if not _is_finished(replay, "rows"):
        return "rows"
    if not _failing(replay, "rows") or _is_everywhere(replay):
        return None
    if not _is_finished(replay, "columns"):
        return "columns"
    needs_more = len(_candidates(replay)) > 1 or not _failing(replay, "columns")
    return "apart" if needs_more and not _is_finished(replay, "apart") else None


def _is_finished(replay: Replay, phase: Phase) -> bool:
    return all(_is_settled(replay, group) for group in _groups(replay, phase))


def _is_settled(replay: Replay, group: ReplayGroup) -> bool:
    if (group.phase, group.number) in replay.untested:
        return True
    return any(
        each.failed or each.passes >= replay.passes
        for each in replay.tried
        if (each.phase, each.number) == (group.phase, group.number)
    )


def _groups(replay: Replay, phase: Phase) -> tuple[ReplayGroup, ...]:
    if phase == "apart":
        members: tuple[tuple[int, ...], ...] = tuple((each,) for each in _candidates(replay))
    else:
        members = replay.grid.rows() if phase == "rows" else replay.grid.columns()
    return tuple(ReplayGroup(phase=phase, number=number, members=each) for number, each in enumerate(members))


def _failing(replay: Replay, phase: Phase) -> tuple[int, ...]:
    return tuple(sorted(each.number for each in replay.tried if each.phase == phase and each.failed))


def _is_everywhere(replay: Replay) -> bool:
    rows = len(replay.grid.rows())
    return rows > 1 and len(_failing(replay, "rows")) == rows


def _candidates(replay: Replay) -> tuple[int, ...]:
    """Return the machines in failing groups of both phases; of the first alone where the second saw nothing or elsewhere."""
    by_row, by_column = replay.grid.rows(), replay.grid.columns()
    in_rows = {machine for number in _failing(replay, "rows") for machine in by_row[number]}
    in_columns = {machine for number in _failing(replay, "columns") for machine in by_column[number]}
    untested = {machine for phase, number in replay.untested if phase == "columns" for machine in by_column[number]}
    return tuple(sorted(in_rows & (in_columns | untested) or in_rows))


def _filled(replay: Replay, groups: Iterable[ReplayGroup]) -> tuple[ReplayGroup, ...]:
    """Fill short groups up with machines that passed, as many groups as there are machines for."""
    free = _proven(replay)
    filled: list[ReplayGroup] = []
    for group in groups:
        busy = {machine for each in filled for machine in each.helpers}
        missing = -len(group.members) % replay.unit
        able = [machine for machine in free if machine not in group.members][:missing]
        if len(able) == missing and not busy.intersection(group.members):
            free = [machine for machine in free if machine not in able and machine not in group.members]
            filled.append(msgspec.structs.replace(group, helpers=tuple(able)))
    return tuple(filled)


def _proven(replay: Replay) -> list[int]:
    """Return machines that were in a group that passed all its passes, and in none that failed."""
    good: set[int] = set()
    bad: set[int] = set()
    for phase in ("rows", "columns"):
        groups = replay.grid.rows() if phase == "rows" else replay.grid.columns()
        for each in replay.tried:
            if each.phase == phase:
                if each.failed:
                    bad.update(groups[each.number])
                elif each.passes >= replay.passes:
                    good.update(groups[each.number])
    return sorted(good - (bad if not _is_finished(replay, "columns") else set(_candidates(replay))))


def _names(replay: Replay, machines: Iterable[int]) -> tuple[str, ...]:
    return tuple(replay.machines[machine] for machine in machines)


def _listed(numbers: tuple[int, ...], most: int = 8) -> str:
    shown = ", ".join(map(str, numbers[:most])) or "none"
    return shown + (f" and {len(numbers) - most} more" if len(numbers) > most else "")
