"""The words of what was found of a fleet in a folder. No behaviour but counting."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from robust_run.fleet.words import RunFacts


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of runs, and what could not be read."""

    facts: tuple[RunFacts, ...] = ()
    left_out: Mapping[str, int] = {}
    """By why: damaged, other version, foreign, unreadable, too many."""

    def left_out_words(self) -> str:
        """Return what was left out, as a clause; empty: nothing."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.left_out.items()))
