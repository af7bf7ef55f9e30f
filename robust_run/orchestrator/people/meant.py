"""Which commands about runs are given a job of several roles, which has no controller of its own, and what is meant by them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from robust_run.errors import UserError
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME, is_run, runs_folder
from robust_run.orchestrator.journal import NAME, is_roles_run

#: Commands of `robust`, and what of `robust roles` they are for such a job.
SAME = {
    "status": "show",
    "stop": "stop",
    "top": "top",
    "why": "why",
    "incident": "incident",
    "events": "events",
    "report": "report",
}
#: Those that are meant for such a job where none is named, and it is the newest run. To end one it is named.
WITHOUT_A_NAME = frozenset(SAME) - {"stop"}
#: Commands that are of one member.
OF_MEMBERS = (
    "nodes",
    "explain",
    "stacks",
    "timeline",
    "outliers",
    "restart",
    "evict",
    "readmit",
    "check",
)
#: Those of them that have no other meaning where no run is named.
OF_RUNS = frozenset(OF_MEMBERS) - {"check"}
_MEMBER = re.compile(r".+-[0-9]+\.[0-9]+")
#: Of `robust report`: what is of one member.
_OF_ONE = ("--startup", "--what-if", "--attempt")


def named(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the run directory of the job of several roles that these words name; empty: none does."""
    folder = runs_folder(_log_dir(words), env)
    before = ("", *words)
    for word, previous in zip(words, before, strict=False):
        if word.startswith("-") or previous in ("--log-dir", "--html") or "\0" in word:
            continue
        for path in (word, os.path.join(folder, word)):
            if is_roles_run(path) and not is_run(path):
                return os.path.relpath(path)
    return ""


def newest(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the newest run of the folder if it is a job of several roles; empty: it is not."""
    if is_run(env.get("ROBUST_RUN_DIR", "")) and not _log_dir(words):
        return ""  # inside a job, which is meant
    folder = runs_folder(_log_dir(words), env)
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    at_s, path = _latest(os.path.join(folder, name, NAME) for name in names)
    is_newest = at_s > _latest(os.path.join(folder, name, JOURNAL_NAME) for name in names)[0]
    return os.path.relpath(os.path.dirname(path)) if is_newest else ""


def _latest(paths: Iterable[str]) -> tuple[float, str]:
    found = (0.0, "")
    for path in paths:
        try:
            found = max(found, (os.stat(path).st_mtime, path))
        except OSError:
            continue
    return found


def unnamed(command: str, words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return what is meant by a command that names no run where the newest one is such a job. Raises UserError."""
    run = newest(words[1:], env)
    if command in WITHOUT_A_NAME:
        return ["roles", *instead(command, words[1:], "")]
    if command == "stop":
        raise UserError(
            f"the newest run is a job of several roles, and to end one it is named: robust stop {shlex.quote(run)}"
        )
    folder = runs_folder(_log_dir(words[1:]), env)
    if command in OF_RUNS and not any(is_run(os.path.join(folder, name)) for name in os.listdir(folder)):
        return instead(command, words[1:], run)
    return [*words]


def _log_dir(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        if word.startswith("--log-dir="):
            return word.partition("=")[2]
        if word == "--log-dir" and at + 1 < len(words):
            return words[at + 1]
    return ""


def instead(command: str, words: Sequence[str], run: str) -> list[str]:
    """Return what `robust roles` is told instead. `run`: what was named. Raises UserError for what is of one member."""
    given = [word.partition("=")[0] for word in words]
    if command in SAME and not (command == "report" and {*_OF_ONE, "--startups"} & {*given}):
        return [SAME[command], *words]
    if "--startups" in given:
        raise UserError(
            f"this is a job of several roles: robust report --startups {shlex.quote(os.path.join(run, 'members'))}"
            " is of all its members"
        )
    option = next((f" {word}" for word in given if word in _OF_ONE), "")
    raise UserError(
        f"this is a job of several roles: robust {command}{option} is of one member, for example"
        f" robust {command}{option} {shlex.quote(_a_member(run))}; robust roles {shlex.quote(run)} lists them"
    )


def _a_member(run: str) -> str:
    try:
        names = [name for name in os.listdir(os.path.join(run, "members")) if _MEMBER.fullmatch(name)]
    except OSError:
        names = []
    return os.path.join(run, "members", min(names, default="ROLE-INDEX.START"))
