"""What a node has fetched by now, for the account of a start: a row each of image, set-up, code and checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable

from robust_run.report.startup.types import Fetch


def rows(of_checkpoint: Callable[[], tuple[Fetch, ...]]) -> tuple[Fetch, ...]:
    """Return them. `of_checkpoint`: what is known of that, which tells nodes from the store."""
    module = sys.modules.get("robust_run.store.turn_table")
    if module is None or not module.is_begun():
        return of_checkpoint()
    table = module.opened(module.begin({}))
    found = (
        [] if table is None else [each for each in table.all() if each.came_bytes and each.name != module.CHECKPOINT]
    )
    mine = [Fetch(each.name, each.began_s, each.moved_s, each.came_bytes, is_whole=each.is_over) for each in found]
    return (*mine, *of_checkpoint())
