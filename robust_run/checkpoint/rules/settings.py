"""What arguments and the environment say. Pure: the environment is an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from robust_run.checkpoint.rules.cadence import AT_EVERY_CALL, BESIDE_MEMORY, Every, parse_every
from robust_run.ckpt_io.memory.types import MOST_STEP
from robust_run.errors import UserError

FOLDER, EVERY, MEMORY = "ROBUST_CKPT_DIR", "ROBUST_CKPT_EVERY", "ROBUST_CKPT_MEMORY"
KEEP, LEAVE = "ROBUST_CKPT_KEEP", "ROBUST_CKPT_LEAVE"
RESUME, RESUME_STEP = "ROBUST_RESUME", "ROBUST_RESUME_STEP"
REPLAY, WARNING = "ROBUST_REPLAY", "ROBUST_WARNING_FILE"
_KEEP = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_IN_MEMORY = re.compile(r"rrck\+memory://([0-9]{1,9})/([0-9]{1,19})(?:\?of=([1-9][0-9]{0,8}))?")


@dataclass(frozen=True)
class Settings:
    """Where a state goes, and how often."""

    folder: str
    """Of storage; empty: none."""
    every: Every
    memory: str
    """The folder of the keeper's socket; empty: no memory."""
    is_told: bool = False
    """Somebody said how often; else it is a default."""
    is_said: bool = False
    """It was this call that said it, on all ranks alike."""
    keep: int = 0
    """So many checkpoints in the folder stay; 0: all."""


@dataclass(frozen=True)
class Generation:
    """What an attempt is to start from in memory."""

    attempt: int
    step: int
    saved_by: int = 0
    """So many ranks, if more or fewer load it; 0: as many as load it."""


def settings_of(
    folder: str | None, every: int | str | None, env: Mapping[str, str], keep: int | None = None
) -> Settings:
    """Return where a state goes. Raises UserError: nowhere, or what is said is no number."""
    said = env.get(MEMORY, "")
    memory = "" if said == "off" else said
    where = env.get(FOLDER, "") if folder is None else folder
    if not where and not said:
        raise UserError(
            f"there is nowhere to save to: give folder=, or set {FOLDER} (robust-run --ckpt-dir DIR; --ckpt-memory 4G for "
            "memory alone)"
        )
    often = every if every is not None else env.get(EVERY) or None
    default = BESIDE_MEMORY if memory else AT_EVERY_CALL
    most = parse_keep(keep if keep is not None else env.get(KEEP, ""))
    return Settings(
        where, default if often is None else parse_every(often), memory, often is not None, every is not None, most
    )


def parse_keep(said: int | str) -> int:
    """Return how many checkpoints stay; 0: all of them. Raises UserError."""
    text = str(said).strip()
    if text in ("", "all"):
        return 0
    if isinstance(said, bool) or not _KEEP.fullmatch(text):
        raise UserError(f"keep {said!r} ({KEEP}): give how many checkpoints stay, 1 or more, or all")
    return int(text)


def checked_step(step: int) -> int:
    """Return the step. Raises UserError: it is no number that counts."""
    if type(step) is not int:
        raise UserError(f"step {step!r:.80} is a {type(step).__name__}: give an integer, 0 or more")
    if not 0 <= step < MOST_STEP:
        raise UserError(f"step {step}: give one from 0 to {MOST_STEP - 1}")
    return step


def generation_of(resume: str) -> Generation | None:
    """Return what an address names in memory; None: it is one of storage."""
    found = _IN_MEMORY.fullmatch(resume)
    return None if found is None else Generation(int(found[1]), int(found[2]), int(found[3] or 0))


def step_of(env: Mapping[str, str]) -> int | None:
    """Return the step that the launcher has chosen for all; None: it has named none."""
    said = env.get(RESUME_STEP, "")
    return int(said) if said.isdecimal() else None


def attempt_of(env: Mapping[str, str]) -> int:
    """Return the number of this attempt of the job."""
    said = env.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(said) if said.isdecimal() else 0
