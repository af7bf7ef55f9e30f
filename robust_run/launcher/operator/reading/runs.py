"""Run selection of a command: a path, the name of a run, or the newest one."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.world import Files, obstacle, runs_instead, user_of, usual_runs

JOURNAL_NAME = "journal.jsonl"
#: What a list of runs says of one without it.
NO_JOURNAL = f"there is no {JOURNAL_NAME} in it: its controller is or was on another node, or the file was removed"
#: One of them is in each run directory: a job's journal, and that of a job of several roles.
_JOURNALS = (JOURNAL_NAME, "roles.jsonl")
#: What a node has that follows the leader of a job of several roles: where that is.
_PLACE_OF_NODE = re.compile(r"roles\..+\.place")


def find_run(run: str, log_dir: str, env: Mapping[str, str], files: Files | None = None) -> str:
    """Return the run directory. Raises PlatformError if there is none, UserError for a name that is none."""
    if run and (os.sep in run or run in (".", "..") or is_run(run)):
        if not is_run(run):
            raise PlatformError(not_here(run) or f"{run!r} is no run directory: there is no {JOURNAL_NAME} in it")
        return os.path.abspath(run)
    if not run and not log_dir and is_run(env.get("ROBUST_RUN_DIR", "")):
        return env["ROBUST_RUN_DIR"]  # inside a job
    folder = runs_folder(log_dir, env, files)
    if run:
        if "\0" in run:
            raise UserError(f"{run!r} is no name of a run")
        path = os.path.join(folder, run)
        if not is_run(path):
            raise PlatformError(
                not_here(path)
                or f"no run {run!r} in {looked_in(log_dir, env, files)}; name its run directory or give --log-dir"
            )
        return os.path.abspath(path)
    found = runs_in(folder)
    if not found:
        elsewhere = next(filter(None, map(not_here, _folders_in(folder))), "")
        raise PlatformError(
            elsewhere or f"no run in {looked_in(log_dir, env, files)}; name a run directory or give --log-dir"
        )
    if not is_run(found[0]) and (odd := not_here(found[0])):
        raise PlatformError(odd)
    return found[0]


def sole_live_run(
    run: str, log_dir: str, env: Mapping[str, str], may_live: Callable[[Sequence[str]], list[str]]
) -> str:
    """Return the run to act on. Where several may be live, it must be named. `may_live`: which are, of runs from the newest on.

    Raises UserError, PlatformError.
    """
    found = find_run(run, log_dir, env)
    if run or found == env.get("ROBUST_RUN_DIR"):
        return found
    live = may_live(runs_in(runs_folder(log_dir, env)))
    if len(live) > 1:
        names = ", ".join(os.path.basename(path) for path in live[:8])
        raise UserError(f"several runs may be meant: {names}; name one of them")
    return live[0] if live else found


def named_again(run: str, log_dir: str, path: str, env: Mapping[str, str]) -> str:
    """Return words for a shell that name this run directory in the next command: as it was named, where it was."""
    if run and (os.sep in run or not log_dir):
        return shlex.quote(run)
    if not log_dir and os.path.dirname(path) != runs_folder("", env):
        return shlex.quote(path)
    name = shlex.quote(run or os.path.basename(path))
    return f"{name} --log-dir {shlex.quote(log_dir)}" if log_dir else name


def _told(log_dir: str, env: Mapping[str, str]) -> str:
    return log_dir or env.get("ROBUST_LOG_DIR") or env.get("PET_LOG_DIR") or ""


def runs_folder(log_dir: str, env: Mapping[str, str], files: Files | None = None) -> str:
    """Return where runs are looked for: as told, else where the launcher puts them. `files`: instead of this machine's."""
    if told := _told(log_dir, env):
        return os.path.abspath(os.path.expanduser(told))
    usual, instead = _usual_places(env, files)
    return instead if instead and is_ours(instead) else usual


def _usual_places(env: Mapping[str, str], files: Files | None) -> tuple[str, str]:
    """Return where the launcher puts runs of this working folder; and instead of there, if it has none and cannot be written."""
    usual = usual_runs(os.path.abspath(""))
    if os.path.lexists(usual):
        return usual, ""
    if files is None:
        from robust_run.launcher.agent.workers.this_machine import RealFiles

        files = RealFiles()
    cannot = obstacle(usual, files)
    return usual, runs_instead(os.path.dirname(usual), env, user_of(env)) if cannot else ""


def is_ours(path: str, user: int | None = None) -> bool:
    """Whether a folder and the one around it are this user's, and no links: in a folder for all, others may make any name.

    `user`: the number of another one.
    """
    owner = os.geteuid() if user is None else user
    try:
        found = [os.lstat(each) for each in (os.path.dirname(path), path)]
    except (OSError, ValueError):
        return False
    return all(stat.S_ISDIR(each.st_mode) and each.st_uid == owner for each in found)


def looked_in(log_dir: str, env: Mapping[str, str], files: Files | None = None) -> str:
    """Return the places in which runs are looked for, in words."""
    folder = runs_folder(log_dir, env, files)
    if _told(log_dir, env):
        return repr(folder)
    usual, instead = _usual_places(env, files)
    if not instead:
        return repr(usual)
    others = "" if is_ours(instead) or not os.path.lexists(instead) else " (which is not this user's and is left alone)"
    return f"{usual!r} or {instead!r}{others}"


def runs_in(folder: str) -> list[str]:
    """Return the run directories of a folder, the one with the latest news first."""
    found: list[tuple[float, str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    written_s = os.stat(os.path.join(entry.path, JOURNAL_NAME)).st_mtime
                except OSError:
                    continue
                found.append((written_s, os.path.abspath(entry.path)))
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def not_here(path: str) -> str:
    """Return what to say of a folder that a run left and that has no journal; nothing where no run did."""
    try:
        names = os.listdir(path) if "\0" not in path else []
    except OSError:
        return ""
    if any(_PLACE_OF_NODE.fullmatch(name) for name in names):
        return f"{path!r} is what one node has of a job of several roles that another node leads: ask there"
    if JOURNAL_NAME in names:
        kind = _kind_of(os.path.join(path, JOURNAL_NAME))
        return f"{path!r} has no journal: its {JOURNAL_NAME} is {kind}; put the file back" if kind else ""
    if not any(name.startswith("attempt_") or name == "store.log" for name in names):
        return ""
    return (
        f"{path!r} has no journal: its controller is on another node, or the file was removed; "
        "ask there, give --url http://CONTROLLER:PORT, or put it back"
    )


def _kind_of(path: str) -> str:
    """Return what this is, with an article; empty for a file, and where that cannot be seen."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a link that leads nowhere"
    except OSError as error:
        return f"a link that cannot be followed ({error.strerror})" if os.path.islink(path) else ""
    if stat.S_ISREG(mode):
        return ""
    return "a folder" if stat.S_ISDIR(mode) else "no regular file"


def _folders_in(folder: str) -> list[str]:
    try:
        return sorted((os.path.join(folder, name) for name in os.listdir(folder)), key=_changed_s, reverse=True)
    except OSError:
        return []


def _changed_s(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def is_run(path: str) -> bool:
    """Whether this is a run directory."""
    return bool(path) and "\0" not in path and os.path.isfile(os.path.join(path, JOURNAL_NAME))


def names_beginning(begun: str, log_dir: str, env: Mapping[str, str]) -> list[str]:
    """Return names of runs that a shell may complete, the one with the latest news first."""
    folder = runs_folder(log_dir, env)
    try:
        names = [name for name in os.listdir(folder) if name.startswith(begun) and not name.startswith(".")]
    except OSError:
        return []
    found = [name for name in names if any(os.path.isfile(os.path.join(folder, name, each)) for each in _JOURNALS)]
    return sorted(found, key=lambda name: _changed_s(os.path.join(folder, name)), reverse=True)
