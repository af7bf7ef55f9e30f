"""The record of what sensors saw: what is void when a host was mended, or when another controller's clock counts. Pure."""

from __future__ import annotations

import msgspec

from robust_run.health.rules import deciding
from robust_run.launcher.core.state import JobState


def forget(state: JobState, name: str) -> None:
    """A host was mended: what was counted against it is void."""
    record = state.health
    record.counts = dict(deciding.forget(record.counts, name))
    record.active = {key: sign for key, sign in record.active.items() if key[0] != name}
    record.recent = [sign for sign in record.recent if sign.name != name]
    record.evicted = [each for each in record.evicted if each.name != name]


def begin_anew(state: JobState, name: str, *, but: tuple[str, ...] = ()) -> None:
    """Other sensors watch a host from now on: what those before them had not taken back nobody will, and what is still so is said
    again. `but`: beginnings of names of what others said.
    """
    record = state.health
    record.active = {key: sign for key, sign in record.active.items() if key[0] != name or key[1].startswith(but)}


def resumed(state: JobState, now_s: float) -> None:
    """This clock is another: counts begin anew, and evictions count from now."""
    record = state.health
    record.counts, record.recent = {}, []
    record.evicted = [msgspec.structs.replace(each, at_s=now_s) for each in record.evicted]
