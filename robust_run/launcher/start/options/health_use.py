"""What the options say of health: the rules' file is read and checked before anything starts, and travels as text."""

from __future__ import annotations

import math

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.start.options.options import Options


class HealthUse(msgspec.Struct, frozen=True, kw_only=True):
    """The job's fields about health, checked."""

    rules: str = ""
    max_evict_share: float | None = None
    metrics_from: tuple[str, ...] = ()


def resolve_health(options: Options, world: World) -> HealthUse:
    """Return what was asked for. Raises UserError for a file, a name or a number that cannot be."""
    share = options.max_evict_share
    if share is not None and not (math.isfinite(share) and 0 <= share <= 1):
        raise UserError(f"--max-evict-share {share:g}: must be 0 (rules evict none) to 1 (any number of nodes)")
    return HealthUse(
        rules=_rules(options.health_rules, world),
        max_evict_share=share,
        metrics_from=tuple(_folder(path, world) for path in options.metrics_from),
    )


def _rules(path: str | None, world: World) -> str:
    if path is None:
        return ""
    from robust_run.health.rules.book import MOST_FILE_BYTES, load, parse
    from robust_run.health.sensors.files import read_text

    where = absolute(path, world) if path else ""
    if not where or world.files.kind(where) != "file":
        raise UserError(f"--health-rules {path!r} is no file; give a TOML file, or leave the option out")
    load(where)  # says what is wrong with it, with its name
    text = read_text(where, MOST_FILE_BYTES)
    parse(text, where)
    return text


def _folder(path: str, world: World) -> str:
    """A folder that is not there yet may be made by the script."""
    where = absolute(path, world) if path and "://" not in path else ""
    if not where or world.files.kind(where) not in ("folder", "missing"):
        raise UserError(f"--metrics-from {path!r}: must be a folder of this machine where event files are written")
    return where
