"""The time by the clock of storage, which stamps what is written there: what is old is told by that clock.

A node's own clock may be a day ahead of it, or was set while others save; by that clock a save that is under way would be an old
one that died. So a small file is written, and removed again; what a process leaves that is killed meanwhile the next one removes.
Where that cannot be done nothing is known.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress

from robust_run.ckpt_io import address
from robust_run.ckpt_io.finding import StoreOpener
from robust_run.store.errors import StoreError
from robust_run.store.types import Store

#: Hidden, and so no checkpoint.
NAME = ".robust-run-clock"
TRIES = 3


def earlier_s(root: str, stores: StoreOpener) -> float:
    """Return what time it is at most: the earlier one of this node's clock and that of storage. Never raises."""
    own_s = time.time()
    noted_s = storage_s(root, stores)
    return own_s if noted_s is None else min(own_s, noted_s)


def storage_s(root: str, stores: StoreOpener) -> float | None:
    """Return the time by the clock of storage, None where it does not say. Never raises."""
    with suppress(StoreError, OSError), closing(stores(address.normal(root))) as store:
        store.list()  # a root that is not there is not made
        for _ in range(TRIES):
            if (noted_s := _noted_s(store)) is not None:
                return noted_s
    return None


def _noted_s(store: Store) -> float | None:
    """Return when a file was written that is written now; None: another process, which asks as well, has removed it."""
    store.write_all(NAME, b"\n", durable=False)
    try:
        return next((each.modified_s for each in store.list() if each.name == NAME), None)
    finally:
        with suppress(StoreError):
            store.remove(NAME)
