"""What a job keeps in memory of what `robust_run.checkpoint` saves, and how often that saves. Decides only.

Imported where there is something to decide: an option was given, or the script mentions it.
"""

from __future__ import annotations

import math
import re

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.start.options.options import Options

LEAST_BYTES = 1 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
#: As `robust_run.checkpoint.rules.cadence` reads it.
_EVERY = re.compile(r"[1-9]\d{0,8}[smh]?", re.ASCII)
_KEEP = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def with_memory(spec: JobSpec, options: Options, *, is_mentioned: bool) -> JobSpec:
    """Return a job with what was asked for. `is_mentioned`: the script may save that way. Raises UserError for what cannot be."""
    word = options.ckpt_memory.strip()
    has_memory = None if word == "auto" and not is_mentioned else word != "off"
    return msgspec.structs.replace(
        spec,
        ckpt_memory=has_memory,
        ckpt_copies=_copies(spec, options.ckpt_copies) if has_memory else 0,
        ckpt_memory_bytes=None if word in ("auto", "off") else parse_bytes("--ckpt-memory", word),
        ckpt_every=parse_every(options.ckpt_every),
        ckpt_keep=parse_keep(options.ckpt_keep),
    )


def _copies(spec: JobSpec, word: str) -> int:
    """Return how many copies other nodes keep: one where there are some, unless it was said otherwise."""
    if spec.many is None or word == "0":
        return 0
    return int(word == "1" or spec.many.most + spec.many.standby > 1)


def parse_bytes(option: str, text: str) -> int:
    """Return the bytes of `64G`, `512MiB` or `1073741824`; units are powers of 1024. `option`: for people. Raises UserError."""
    found = _SIZE.fullmatch(text)
    size = float(found[1]) * (1 << _UNITS[found[2].upper()]) if found is not None else math.nan
    if not size < 1 << 62:
        raise UserError(f"{option} {text!r} is no size; write 64G, 512M, auto or off")
    if size < LEAST_BYTES:
        raise UserError(f"{option} {text}: must be 1M or more; off keeps nothing")
    return int(size)


def parse_every(text: str) -> str:
    """Return the words of `--ckpt-every` as workers are told them: `100`, `10m`, `30s`; empty: not given. Raises UserError."""
    word = text.strip().lower()
    if word and _EVERY.fullmatch(word) is None:
        raise UserError(f"--ckpt-every {text!r}: write a number of steps (100) or a time (30s, 10m, 2h)")
    return word


def parse_keep(text: str) -> str:
    """Return the words of `--ckpt-keep` as workers are told them: `3` or `all`; empty: not given. Raises UserError."""
    word = text.strip().lower()
    if word not in ("", "all") and _KEEP.fullmatch(word) is None:
        raise UserError(f"--ckpt-keep {text!r}: write how many checkpoints stay, 1 or more, or all")
    return word
