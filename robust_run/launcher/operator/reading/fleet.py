"""Reads what the runs of some folders have shown: from the facts that they left there, else from their run directories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from robust_run.errors import PlatformError
from robust_run.fleet.files import index
from robust_run.fleet.results import Skipped
from robust_run.fleet.words import RunFacts
from robust_run.launcher.operator.reading.facts_of_folder import facts_of_folder
from robust_run.launcher.operator.reading.run_facts import Lives
from robust_run.launcher.operator.reading.runs import is_run

_OVER = ("done", "stopped", "failed")
ROLES_JOURNAL, MEMBERS = "roles.jsonl", "members"
"""Of a job of several roles: its own journal, and the folder in which each of its members is a run."""


class FleetSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What is in some folders."""

    folders: tuple[str, ...]
    runs: tuple[RunFacts, ...]
    """As they were found: one that two folders have is here twice."""
    skipped: tuple[Skipped, ...]


class FleetReader:
    """Reads folders, again and again: what is known of runs that are over is kept."""

    def __init__(self, folders: Sequence[str], lives: Lives) -> None:
        """`folders`: of runs, or run directories; two names of one folder count once. Raises PlatformError where none is."""
        self._folders = tuple(_unlike(folders))
        self._lives = lives
        self._known: dict[str, dict[str, RunFacts]] = {}

    def read(self, now_s: float) -> FleetSeen:
        """Return what is there. Raises PlatformError where a folder cannot be listed, or no run has left anything in any."""
        runs: list[RunFacts] = []
        counts: dict[str, int] = {}
        examples: dict[str, str] = {}
        for folder in (there for each in self._folders for there in _with_members(each)):
            known = self._known.setdefault(folder, {})
            if not is_run(folder):
                left = index.read(folder)
                known |= {each.run_id: each for each in left.facts}
                _count(counts, {f"{why} (in {index.FOLDER})": count for why, count in left.left_out.items()})
            found = facts_of_folder(folder, now_s, self._lives, known=known)
            _count(counts, found.skipped)
            for each in found.named:
                examples.setdefault(each.reason, f"{each.place}: {each.why}")
            known |= {each.run_id: each for each in found.runs if each.state in _OVER}
            runs += found.runs
        if not runs and not counts:
            raise PlatformError(
                f"no run in {', '.join(map(repr, self._folders))}; name folders of runs (what robust-run was given as --log-dir)"
            )
        skipped = (
            Skipped(why=why, count=count, example=examples.get(why, "")) for why, count in sorted(counts.items())
        )
        return FleetSeen(folders=self._folders, runs=tuple(runs), skipped=tuple(skipped))


def _with_members(folder: str) -> list[str]:
    """Return a folder of runs, and those in which its jobs of several roles keep the runs of their members."""
    jobs = [folder]
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        jobs += sorted(entry.path for entry in entries if not entry.name.startswith("."))
    members = [os.path.join(job, MEMBERS) for job in jobs if os.path.lexists(os.path.join(job, ROLES_JOURNAL))]
    there = [each for each in members if os.path.isdir(each)]
    return there if there and there[0] == os.path.join(folder, MEMBERS) else [folder, *there]


def _count(counts: dict[str, int], more: Mapping[Any, int]) -> None:
    for why, count in more.items():
        counts[why] = counts.get(why, 0) + count


def _unlike(folders: Sequence[str]) -> list[str]:
    """Return folders by their whole names, each once. Raises PlatformError."""
    found: dict[str, str] = {}
    for each in folders:
        if "\0" in each or not os.path.isdir(each):
            what = f"there is no folder {each!r}"
            if "\0" not in each and os.path.exists(each):
                what = f"{each!r} is a file, not a folder" if os.path.isfile(each) else f"{each!r} is no folder"
            raise PlatformError(f"{what}; name folders of runs (what robust-run was given as --log-dir)")
        found.setdefault(os.path.realpath(each), os.path.abspath(each))
    return [*found.values()]
