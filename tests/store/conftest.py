"""What tests of stores share: servers that misbehave, and stores that are closed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from servers.awkward import AwkwardServer, Request, awkward_server

from robust_run.store.opening import open_store
from robust_run.store.types import Store, StoreOptions

#: A busy machine is no silent server.
PATIENT = StoreOptions(connect_s=30, stall_s=30)

Serve = Callable[[Callable[[Request], object]], AwkwardServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda behave: stack.enter_context(awkward_server(behave))


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    """Opens stores, and closes them in the end."""
    with ExitStack() as stack:

        def opener(url: str, options: StoreOptions = PATIENT) -> Store:
            store = open_store(url, options)
            stack.callback(store.close)
            return store

        yield opener
