"""The time by the clock of storage, which stamps what is written there: what is old is told by that clock.

A node's own clock may be a day ahead of it, or was set while others save; by that clock a save that is under way would be an old
one that died. So a small file is written, and removed again. Where that cannot be done nothing is known.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress

from robust_run.ckpt_io import address
from robust_run.ckpt_io.finding import StoreOpener
from robust_run.store.errors import StoreError


def earlier_s(root: str, stores: StoreOpener) -> float:
    """Return what time it is at most: the earlier one of this node's clock and that of storage. Never raises."""
    own_s = time.time()
    noted_s = storage_s(root, stores)
    return own_s if noted_s is None else min(own_s, noted_s)


def storage_s(root: str, stores: StoreOpener) -> float | None:
    """Return the time by the clock of storage, None where it does not say. Never raises."""
    name = f".robust-run-clock-{os.urandom(8).hex()}"
    with suppress(StoreError, OSError), closing(stores(address.normal(root))) as store:
        store.list()  # a root that is not there is not made
        store.write_all(name, b"\n", durable=False)
        try:
            return next((each.modified_s for each in store.list() if each.name == name), None)
        finally:
            with suppress(StoreError):
                store.remove(name)
    return None
