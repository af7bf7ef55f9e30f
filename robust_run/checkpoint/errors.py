"""What a state can be refused for."""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.errors import UserError

_NAMED = 5
_SHOWN_CHARACTERS = 200


class StateRefused(UserError):  # noqa: N818 - a state of the world, named as such
    """Something in the state cannot be kept as data. Nothing was saved."""

    def __init__(self, refused: Sequence[tuple[str, str]]) -> None:
        """`refused`: keys, and what is wrong with each, as a clause."""
        said = "; ".join(f"{_brief(key)}: {reason}" for key, reason in refused[:_NAMED])
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        super().__init__(f"the state cannot be saved: {said}{more}")
        self.keys = tuple(key for key, _ in refused)


def _brief(key: str) -> str:
    return key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}..."
