"""torch's TCPStore on a socket that listens already, for the store of a job and for ranks of a check. Imports nothing."""

from __future__ import annotations

from typing import Any


def listening(store_class: Any, address: str, port: int, descriptor: int, **options: Any) -> Any:
    """Return the store that is served on it. Those of torch 2.6 and 2.7 take such a socket without libuv only."""
    options = {**options, "is_master": True, "wait_for_workers": False, "master_listen_fd": descriptor}
    try:
        return store_class(address, port, **options)
    except NotImplementedError:
        return store_class(address, port, **options, use_libuv=False)
