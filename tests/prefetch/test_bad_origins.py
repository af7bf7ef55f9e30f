"""Web servers as they should not be, as the only place that an image can be had from: no wrong byte, and a true reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from prefetch.images import SMALL_BLOCK, make_image
from servers.awkward import AwkwardServer, Request, awkward_server

from robust_run.prefetch import blockmap, maps
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import BlockMapRefused
from robust_run.prefetch.fetching.sources import origin
from robust_run.prefetch.fetching.workers import Fetcher
from robust_run.prefetch.rules.source_health import Health
from robust_run.prefetch.rules.types import FetchLimits
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import AccessDenied, Unavailable
from robust_run.store.types import StoreOptions

COUNT = 8
WAIT_S = 60.0
#: So patient that a busy machine is not taken for a bad server; what a server answers is believed after four times.
LIMITS = FetchLimits(
    width=1,
    demand_width=1,
    keep_free_bytes=0,
    hedge_after_s=60.0,
    back_off_s=0.1,
    refusal_s=0.0,
    stretch_bytes=SMALL_BLOCK,
)
LOGIN = b"<!doctype html><title>Sign in</title>" + b"please " * SMALL_BLOCK

Behaviour = Callable[[Request], object]


class Bench:
    """An image at a server that does as it is told, and what reads it."""

    def __init__(self, folder: Path, server: AwkwardServer) -> None:
        self.folder, self.server = folder, server
        path, self.map = make_image(folder, COUNT * SMALL_BLOCK, block_bytes=SMALL_BLOCK)
        self.data = path.read_bytes()
        self.behave: Behaviour = self.well
        self.met = 0
        """Requests that were answered badly."""
        self.said: list[str] = []
        self._stack = ExitStack()

    def answer(self, request: Request) -> object:
        self.met += self.behave is not self.well
        return self.behave(request)

    def well(self, request: Request) -> bool:
        request.answer_range(self.data, ETag='"one"')
        return True

    def range_of(self, request: Request, shift: int = 0, short: int = 0) -> tuple[bytes, str]:
        """Return the bytes of a range and its header, both as wrong as wanted."""
        assert request.range is not None
        first, end = request.range
        body = self.data[first + shift : end + shift - short]
        return body, f"bytes {first + shift}-{end + shift - short - 1}/{len(self.data)}"

    def fetcher(self, limits: FetchLimits = LIMITS, *, takes_over: bool = False) -> Fetcher:
        cache = Cache(str(self.folder / "cache"), self.map)
        self._stack.callback(cache.close)
        source = origin(f"{self.server.url}/train.sqsh", 0, limits)
        self._stack.callback(source.close)

        def tell(sentence: str, _about: str) -> None:
            self.said.append(sentence)

        fetcher = Fetcher(self.map, cache, [source], limits, tell=tell, takes_over=takes_over)
        fetcher.start()
        self._stack.callback(fetcher.stop, WAIT_S)
        return fetcher

    def block(self, index: int) -> bytes:
        return self.data[index * SMALL_BLOCK : (index + 1) * SMALL_BLOCK]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Iterator[Bench]:
    found: list[Bench] = []
    with awkward_server(lambda request: found[0].answer(request)) as server:
        found.append(Bench(tmp_path, server))
        yield found[0]
        found[0].close()


def read(fetcher: Fetcher, block: int) -> tuple[bytes | None, str]:
    result: Future[tuple[bytes | None, str]] = Future()
    fetcher.read(block * SMALL_BLOCK, SMALL_BLOCK, lambda data, reason: result.set_result((data, reason)))
    return result.result(WAIT_S)


def send_to_log_in(_bench: Bench, request: Request) -> None:
    if request.path == "/login":
        request.answer("200 OK", LOGIN, Content_Type="text/html")
    else:
        request.answer("302 Found", Location="/login")


def send(shift: int = 0, short: int = 0, said_shift: int | None = None) -> Callable[[Bench, Request], None]:
    """Answer with another range than was asked for, and say so; or say that it was another (`said_shift`)."""

    def answer(bench: Bench, request: Request) -> None:
        body, said = bench.range_of(request, shift, short)
        if said_shift is not None:
            said = bench.range_of(request, said_shift, short)[1]
        request.answer("206 Partial Content", body, Content_Range=said)

    return answer


def send_encoded(bench: Bench, request: Request) -> None:
    body, said = bench.range_of(request)
    request.answer("206 Partial Content", body, Content_Range=said, Content_Encoding="gzip")


HTML = {"Content_Type": "text/html; charset=utf-8"}
BAD: dict[str, tuple[Callable[[Bench, Request], None], str]] = {
    "no login": (lambda _, r: r.answer("401 Unauthorized", LOGIN, WWW_Authenticate="Basic"), "says 401 .*check the token"),
    "no access": (lambda _, r: r.answer("403 Forbidden", LOGIN, **HTML), "says 403 .*check the token"),
    "a login page": (lambda _, r: r.answer("200 OK", LOGIN, **HTML), "a web page .*log in"),
    "sent to log in": (send_to_log_in, "a web page .*log in"),
    "a circle": (lambda _, r: r.answer("302 Found", Location=r.path), "more than 5 redirects"),
    "another range": (send(10), "were asked for"),
    "bytes of another range": (send(10, said_shift=0), "wrong bytes"),
    "a part of it": (send(short=9), "truncated"),
    "encoded": (send_encoded, "gzip"),
    "replaced": (lambda b, r: r.answer_range(b.data[::-1], ETag='"two"'), "sends wrong bytes.*was replaced.*start the job"),
    "replaced by a shorter one": (lambda b, r: r.answer_range(b.data[:9], ETag='"two"'), "truncated"),
    "nothing new": (lambda _, r: r.answer("304 Not Modified"), "304"),
}  # fmt: skip


@pytest.mark.parametrize("how", BAD)
def test_what_a_server_answers_wrongly_is_never_read_and_is_said_as_it_is(bench: Bench, how: str) -> None:
    behave, said = BAD[how]
    fetcher = bench.fetcher()
    assert read(fetcher, 0)[0] == bench.block(0)
    bench.behave = lambda request: behave(bench, request) is None
    data, reason = read(fetcher, 5)
    assert data is None
    assert bench.met >= 4, "it was asked again"
    [line] = bench.said
    assert line == f"block 5 could not be read: {reason}"
    assert reason.startswith(f"{bench.server.url}/train.sqsh")
    assert re.search(said, reason), reason
    bench.behave = bench.well
    assert read(fetcher, 6)[0] == bench.block(6), "it is forgiven"


@pytest.mark.parametrize("how", ["another ETag", "all of it", "moved"])
def test_what_is_the_same_image_is_as_good(bench: Bench, how: str) -> None:
    def moved(request: Request) -> None:
        if request.path.startswith("/data"):
            request.answer("302 Found", Location="/elsewhere")
        else:
            request.answer_range(bench.data, ETag='"other"')

    behaviours: dict[str, Callable[[Request], None]] = {
        "another ETag": lambda request: request.answer_range(bench.data, ETag='"two"', Last_Modified="today"),
        "all of it": lambda request: request.answer("200 OK", bench.data),
        "moved": moved,
    }
    fetcher = bench.fetcher()
    assert read(fetcher, 0)[0] == bench.block(0)
    bench.behave = lambda request: behaviours[how](request) is None
    assert read(fetcher, 5) == (bench.block(5), "")
    assert bench.met
    assert bench.said == []


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_server_that_refuses_for_a_while_costs_a_read_that_while(bench: Bench, takes_over: bool) -> None:
    fetcher = bench.fetcher(msgspec.structs.replace(LIMITS, refusal_s=1e9), takes_over=takes_over)
    if not takes_over:
        assert read(fetcher, 0)[0] == bench.block(0)

    def refuse(request: Request) -> bool:
        if bench.met > 10:
            bench.behave = bench.well
        request.answer("403 Forbidden")
        return True

    bench.behave = refuse
    assert read(fetcher, 5) == (bench.block(5), "")
    assert bench.met > 10
    assert bench.said == []


def test_a_server_that_refuses_from_the_beginning_is_believed(bench: Bench) -> None:
    fetcher = bench.fetcher(msgspec.structs.replace(LIMITS, refusal_s=1e9))
    bench.behave = lambda request: request.answer("403 Forbidden") is None
    data, reason = read(fetcher, 5)
    assert data is None
    assert "403" in reason


def test_a_server_that_crawls_is_said_to_be_too_slow(bench: Bench) -> None:
    def crawl(request: Request) -> None:
        request.answer("206 OK", length=SMALL_BLOCK, Content_Range=bench.range_of(request)[1])
        while not bench.server.ended.wait(0.05):
            request.send(b"x")

    fetcher = bench.fetcher(msgspec.structs.replace(LIMITS, request_limit_s=0.1, read_limit_s=3.0))
    bench.behave = crawl
    data, reason = read(fetcher, 5)
    assert data is None
    assert bench.met
    assert "it did not send 0.1 MB in" in reason


def test_where_it_redirects_to_is_named_and_asked_anew_when_it_dies(bench: Bench) -> None:
    with awkward_server(bench.well) as mirror:
        bench.behave = lambda request: request.answer("302 Found", Location=mirror.url) is None
        fetcher = bench.fetcher()
        assert read(fetcher, 0)[0] == bench.block(0)
        host = mirror.url.removeprefix("http://").partition("/")[0]
    source = origin(f"{bench.server.url}/train.sqsh", 0, LIMITS)
    with pytest.raises(Unavailable, match=f"it redirected to {host}"):
        source.read_into(0, [memoryview(bytearray(10))], Cancellation())
    source.close()
    bench.behave = bench.well
    assert read(fetcher, 5) == (bench.block(5), "")


def test_a_source_is_left_alone_for_as_long_as_it_asks_for_within_reason() -> None:
    health = Health(("origin",), LIMITS)
    health.failed(0, 100.0, 7.0)
    assert health.quiet_until_s(0) == 107.0
    health.failed(0, 101.0)  # it was under way, too
    assert health.quiet_until_s(0) == 107.0
    health.failed(0, 110.0, 3600.0)
    assert health.quiet_until_s(0) == 130.0


@pytest.mark.parametrize(("said", "waited_s"), [("7", 7.0), ("0", 0.0), ("soon", 0.0), ("-1", 0.0), ("9" * 20, 0.0)])
def test_what_a_busy_server_asks_for_is_known(bench: Bench, said: str, waited_s: float) -> None:
    bench.behave = lambda request: request.answer("429 Too Many Requests", Retry_After=said) is None
    source = origin(f"{bench.server.url}/train.sqsh", 0, LIMITS)
    with pytest.raises(Unavailable) as caught:
        source.read_into(0, [memoryview(bytearray(10))], Cancellation())
    source.close()
    assert caught.value.retry_after_s == waited_s


# The block map: what a start reads first.


class Pauses:
    """Time that passes at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waiting = maps.Waiting(lambda: self.now_s, self._pause)

    def _pause(self, wait_s: float) -> None:
        self.now_s += wait_s


def answering_map(bench: Bench, bad: int, **headers: str) -> Behaviour:
    def answer(request: Request) -> bool:
        if bench.met <= bad:
            request.answer("503 Slow Down", **headers)
        else:
            request.answer("200 OK", blockmap.encode(bench.map))
        return True

    return answer


@pytest.mark.parametrize(("bad", "headers", "waited_s"), [(1, {}, 0.2), (3, {}, 1.7), (1, {"Retry_After": "7"}, 7.0)])
def test_a_store_that_is_busy_for_a_moment_costs_a_start_that_moment(
    bench: Bench, bad: int, headers: dict[str, str], waited_s: float
) -> None:
    time = Pauses()
    bench.behave = answering_map(bench, bad, **headers)
    cache = str(bench.folder / "cache")
    found = maps.fetch_map(f"{bench.server.url}/train.sqsh", cache, StoreOptions(), time.waiting)
    assert found == (bench.map, ())
    assert time.now_s == pytest.approx(waited_s)
    bench.behave, time.now_s, bench.met = answering_map(bench, WAIT_S), 0.0, 0  # type: ignore[arg-type]
    again, [said] = maps.fetch_map(f"{bench.server.url}/train.sqsh", cache, StoreOptions(), time.waiting)
    assert (again, time.now_s) == (bench.map, 0.0), "there is one that was there last"
    assert "503 Slow Down; the block map that was there last is used" in said


def test_a_store_that_stays_away_is_given_up(bench: Bench) -> None:
    time = Pauses()
    bench.behave = answering_map(bench, 99, Retry_After="9999")
    with pytest.raises(Unavailable, match="503"):
        maps.fetch_map(f"{bench.server.url}/train.sqsh", str(bench.folder), StoreOptions(), time.waiting)
    assert 0 < time.now_s <= 15


def test_a_login_page_is_no_block_map_and_no_image(bench: Bench) -> None:
    bench.behave = lambda request: request.answer("200 OK", LOGIN, Content_Type="text/html") is None
    with pytest.raises(AccessDenied, match=r"blocks\.json: the server sent a web page .*check the URL"):
        maps.fetch_map(f"{bench.server.url}/train.sqsh", str(bench.folder), StoreOptions())
    bench.behave = lambda request: request.answer("200 OK", LOGIN) is None
    with pytest.raises(BlockMapRefused, match=r"blocks\.json"):
        maps.fetch_map(f"{bench.server.url}/train.sqsh", str(bench.folder), StoreOptions())
