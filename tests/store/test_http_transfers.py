"""Many ranges over HTTP at once: what breaks off is read again, what is slow twice, and all of it arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from servers.awkward import CONTENT, AwkwardServer, Request
from servers.nginx import running_nginx

from robust_run.store.engine import Hedge, Retry, transfer
from robust_run.store.jobs import ReadJob
from robust_run.store.opening import open_store
from robust_run.store.types import Store, StoreOptions

Serve = Callable[[Callable[[Request], object]], AwkwardServer]


def good(request: Request) -> bool:
    request.answer_range(ETag='"one"')
    return True


def jobs_of(store: Store, buffer: bytearray, each: int) -> list[ReadJob]:
    view = memoryview(buffer)
    return [ReadJob(store, "file", at, [view[at : at + each]]) for at in range(0, len(buffer), each)]


def test_ranges_that_break_off_or_go_silent_are_read_again(serve: Serve, opened: Callable[..., Store]) -> None:
    seen: set[tuple[int, int]] = set()

    def behave(request: Request) -> bool:
        assert request.range is not None
        first, end = request.range
        if request.range in seen:
            return good(request)
        seen.add(request.range)
        request.answer("206 Partial Content", b"???", length=end - first, Content_Range=f"bytes {first}-{end - 1}/*")
        if first % 2000:
            server.ended.wait(60)
        return False

    server, buffer = serve(behave), bytearray(10_000)
    store = opened(server.url, StoreOptions(stall_s=1.0))
    done = transfer(jobs_of(store, buffer, 1000), threads=4, retry=Retry(attempts=20, first_wait_s=0.01))
    assert buffer == CONTENT[:10_000]
    assert done.retries >= 10


def test_the_last_range_of_a_slow_connection_is_read_over_another(serve: Serve, opened: Callable[..., Store]) -> None:
    held = threading.Lock()

    def behave(request: Request) -> bool:
        if request.range == (3000, 4000) and held.acquire(blocking=False):
            server.ended.wait(60)
            return False
        return good(request)

    server, buffer = serve(behave), bytearray(10_000)
    store = opened(server.url, StoreOptions(stall_s=120))
    done = transfer(jobs_of(store, buffer, 1000), threads=4, hedge=Hedge(after_s=0.1))
    assert buffer == CONTENT[:10_000]
    assert held.locked()
    assert done.hedges >= 1


def test_many_paced_connections_fill_one_buffer(tmp_path: Path) -> None:
    content = CONTENT * 8
    (tmp_path / "file").write_bytes(content)
    buffer = bytearray(len(content))
    view, each = memoryview(buffer), 1 << 18
    with running_nginx(tmp_path, ports=4, bytes_per_s=20_000_000) as urls, ExitStack() as stack:
        stores = [open_store(url) for url in urls]
        for store in stores:
            stack.callback(store.close)
        jobs = (
            ReadJob(stores[at // each % 4], "file", at, [view[at : at + each]]) for at in range(0, len(content), each)
        )
        seen: list[int] = []
        done = transfer(jobs, threads=16, progress=seen.append)
    assert buffer == content
    assert sum(seen) == done.size_bytes == len(content)
