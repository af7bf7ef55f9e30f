"""Where a worker's command line names the user's code, and what of it changes with a version. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from robust_run.launcher.records.code.settings import with_arguments

Kind = Literal["script", "module", "program"]
"""script: a file or folder that Python runs. module: `-m NAME`. program: none of Python's; only its arguments change."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A command line taken apart."""

    kind: Kind
    at: int
    """Index of the word that names it; its own arguments follow."""


def program_of(argv: Sequence[str], *, is_python: bool) -> Program:
    """Take a worker's command line apart, as `entrypoint` puts it together."""
    if not is_python or len(argv) < 3:
        return Program(kind="program", at=0)
    at = 2  # [python, -u, ...]
    if argv[at] == "-m":
        return Program(kind="module", at=at + 1)
    if argv[at] == "-c":  # --run-path: code of ours, then the script
        return Program(kind="script", at=at + 2) if len(argv) > at + 2 else Program(kind="program", at=0)
    if argv[at] == "--":
        at += 1
    return Program(kind="script", at=at)


def with_settings(argv: Sequence[str], program: Program, settings: dict[str, str]) -> tuple[str, ...]:
    """Return the command line with arguments of an update set."""
    head, arguments = argv[: program.at + 1], argv[program.at + 1 :]
    return (*head, *with_arguments(arguments, settings))


def in_folder(argv: Sequence[str], program: Program, path: str) -> tuple[str, ...]:
    """Return the command line with the script at another path. A module is named by its name, wherever it is."""
    if program.kind != "script":
        return tuple(argv)
    return (*argv[: program.at], path, *argv[program.at + 1 :])


def script_path(argv: Sequence[str], program: Program, cwd: str) -> str:
    """Return the absolute path of the script; empty where there is none."""
    return os.path.normpath(os.path.join(cwd, argv[program.at])) if program.kind == "script" else ""


def module_folder(argv: Sequence[str], program: Program, cwd: str) -> str:
    """Return the working directory if `-m` finds its module there, as Python would, first of all; else nothing."""
    if program.kind != "module":
        return ""
    top = argv[program.at].partition(".")[0]
    here = os.path.join(cwd, top)
    return cwd if top and (os.path.isfile(f"{here}.py") or os.path.isdir(here)) else ""
