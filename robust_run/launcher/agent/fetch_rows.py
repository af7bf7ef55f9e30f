"""What a node has fetched by now, for the account of a start: a row each of image, set-up, code and checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.report.startup.types import Fetch
    from robust_run.store.rules.turns import Fetching


def came() -> dict[str, int]:
    """Return how many bytes of each have come by now: what a later attempt must not count as its own."""
    return {each.name: each.came_bytes for each in _all()}


def rows(
    of_checkpoint: Callable[[], tuple[Fetch, ...]], before: Mapping[str, int] | None = None, since_s: float = 0.0
) -> tuple[Fetch, ...]:
    """Return them. `of_checkpoint`: what is known of that, which tells nodes from the store. `before`: what had come when the
    attempt was ordered, before `since_s` of the monotonic clock; None: it is the first.
    """
    from robust_run.report.startup.types import Fetch

    had = before or {}
    mine = [
        Fetch(each.name, max(each.began_s, since_s), each.moved_s, new_bytes, is_whole=each.is_over)
        for each in _all()
        if (new_bytes := each.came_bytes - had.get(each.name, 0)) > 0
    ]
    return (*mine, *of_checkpoint())


def _all() -> list[Fetching]:
    """Return what the table has of everything but the checkpoint; empty: there is none."""
    module = sys.modules.get("robust_run.store.turn_table")
    if module is None or not module.is_begun():
        return []
    table = module.opened(module.begin({}))
    return [] if table is None else [each for each in table.all() if each.name != module.CHECKPOINT]
