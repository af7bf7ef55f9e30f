"""What the holder of a place says of the rungs that it tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.rules import restore_ladder as ladder

if TYPE_CHECKING:
    from robust_run.prefetch.inside.handle import Inside


class NoRung(RestoreRefused):
    """The holder has found no rung. The message is what it said."""

    def words(self, rungs: tuple[ladder.Rung, ...]) -> str:
        """Return the reasons for people."""
        return "; ".join(f"not {rung}: {reason}" for rung, reason in self.reasons(rungs).items())

    def reasons(self, rungs: tuple[ladder.Rung, ...]) -> dict[ladder.Rung, str]:
        """Return why each rung could not be taken."""
        try:
            refused = msgspec.json.decode(str(self), type=tuple[ladder.Refusal, ...])
        except msgspec.MsgspecError:
            return dict.fromkeys(rungs, str(self))
        return {**dict.fromkeys(rungs, "it could not be tried"), **{each.rung: each.reason for each in refused}}


def chosen_in(inside: Inside) -> ladder.RestoreChoice:
    """Return what the holder chose. The reasons are in its sentence, which is kept as it is."""
    return _Said(rung=msgspec.convert(inside.ready.rung, ladder.Rung), refused=(), said=inside.ready.chosen)


class _Said(ladder.RestoreChoice, frozen=True, kw_only=True):
    said: str

    def sentence(self) -> str:
        return self.said
