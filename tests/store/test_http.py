"""Reading over HTTP: from a real nginx, and from servers as they should not be."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.awkward import CONTENT, AwkwardServer, Request
from servers.nginx import running_nginx

from robust_run.errors import UserError
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import (
    AccessDenied,
    Cancelled,
    Changed,
    NotFound,
    ReadOnly,
    ShortRead,
    Stalled,
    StoreError,
    TooLarge,
    Unavailable,
    Unsupported,
    is_transient,
)
from robust_run.store.types import Store, StoreOptions

QUICK = StoreOptions(connect_s=5, stall_s=0.3)

Serve = Callable[[Callable[[Request], object]], AwkwardServer]


def read(store: Store, offset_bytes: int, length: int, path: str = "file") -> bytes:
    buffer = bytearray(length)
    half = length // 2
    view = memoryview(buffer)
    store.read_into(path, offset_bytes, [view[:half], view[half:]])
    return bytes(buffer)


def good(request: Request) -> bool:
    request.answer_range(ETag='"one"')
    return True


# From a real server


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "fi le%41").write_bytes(CONTENT)
    (tmp_path / "empty").write_bytes(b"")
    with running_nginx(tmp_path) as (url,):
        yield url


def test_ranges_of_a_file_of_nginx_arrive_where_they_belong(nginx: str, opened: Callable[..., Store]) -> None:
    store = opened(f"{nginx}/folder/")
    assert store.size_bytes("fi le%41") == len(CONTENT)
    assert read(store, 1000, 70000, "fi le%41") == CONTENT[1000:71000]
    assert store.read_all("fi le%41", len(CONTENT)) == CONTENT
    assert not store.writable


def test_what_is_not_there_and_what_is_too_short_or_too_long(nginx: str, opened: Callable[..., Store]) -> None:
    store = opened(nginx)
    with pytest.raises(NotFound, match="404"):
        store.size_bytes("none")
    with pytest.raises(NotFound, match=f"{nginx}/none"):
        read(store, 0, 10, "none")
    with pytest.raises(ShortRead, match="0 are there") as past_the_end:
        read(store, len(CONTENT), 10, "folder/fi le%41")
    assert past_the_end.value.got_bytes == 0
    with pytest.raises(ShortRead, match="5 are there"):
        read(store, len(CONTENT) - 5, 10, "folder/fi le%41")
    with pytest.raises(TooLarge, match=f"at most {len(CONTENT) - 1}"):
        store.read_all("folder/fi le%41", len(CONTENT) - 1)
    assert store.size_bytes("empty") == 0
    assert store.read_all("empty", 0) == b""
    store.read_into("none", 0, [])


def test_https_is_verified(tmp_path: Path, opened: Callable[..., Store]) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    key, cert = str(tmp_path / "key"), str(tmp_path / "cert")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(CONTENT)
    with running_nginx(tmp_path / "served", tls=(cert, key)) as (url,):
        trusting = StoreOptions(ca_file=cert)
        assert read(opened(url, trusting), 5, 100) == CONTENT[5:105]
        with pytest.raises(AccessDenied, match="certificate is not trusted"):
            read(opened(url), 5, 100)


def test_nothing_is_written_or_listed(opened: Callable[..., Store]) -> None:
    store = opened("http://127.0.0.1:1/x")
    for writing in (lambda: store.create("a"), lambda: store.write_all("a", b""), lambda: store.remove("a")):
        with pytest.raises(ReadOnly):
            writing()
    with pytest.raises(Unsupported):
        store.list()


# From servers that misbehave


def test_a_server_that_goes_silent_is_given_up_in_the_time_of_a_stall(
    serve: Serve, opened: Callable[..., Store]
) -> None:
    server = serve(lambda request: server.ended.wait(60))
    with pytest.raises(Stalled, match=r"no byte for 0\.3 s") as silent:
        read(opened(server.url, QUICK), 0, 100)
    assert is_transient(silent.value)


def test_a_server_that_goes_silent_in_the_middle_is_given_up(serve: Serve, opened: Callable[..., Store]) -> None:
    def behave(request: Request) -> None:
        request.answer("206 Partial Content", CONTENT[:50], length=100, Content_Range="bytes 0-99/1000")
        server.ended.wait(60)

    server = serve(behave)
    with pytest.raises(Stalled):
        read(opened(server.url, QUICK), 0, 100)


def test_a_server_that_breaks_off_in_the_middle_is_unavailable(serve: Serve, opened: Callable[..., Store]) -> None:
    def behave(request: Request) -> None:
        request.answer("206 Partial Content", CONTENT[:60], length=100, Content_Range="bytes 0-99/1000")

    with pytest.raises(Unavailable, match=r"40 of (100|50) bytes"):
        read(opened(serve(behave).url), 0, 100)
    whole = serve(lambda request: request.answer("200 OK", CONTENT[:60], length=100))
    with pytest.raises(Unavailable, match="60 of 100"):
        opened(whole.url).read_all("file", 1000)


def test_ranges_that_are_ignored_are_made_up_for_while_it_is_cheap(serve: Serve, opened: Callable[..., Store]) -> None:
    server = serve(lambda request: request.answer("200 OK", CONTENT))
    assert read(opened(server.url), 1000, 5000) == CONTENT[1000:6000]
    with pytest.raises(ShortRead, match="2 are there"):
        read(opened(server.url), len(CONTENT) - 2, 10)
    huge = serve(lambda request: request.answer("200 OK", b"", length=1 << 40))
    with pytest.raises(Unsupported, match="ignores Range"):
        read(opened(huge.url), 1 << 30, 10)


@pytest.mark.parametrize(
    "said", ["bytes 1-100/1000", "bytes 0-199/1000", "nonsense", "bytes 0-9999999999999999999/1", ""]
)
def test_another_range_than_was_asked_for_is_refused(said: str, serve: Serve, opened: Callable[..., Store]) -> None:
    server = serve(lambda request: request.answer("206 Partial Content", CONTENT[:100], Content_Range=said))
    buffer = bytearray(100)
    with pytest.raises(StoreError, match=r"range|asked for") as refused:
        opened(server.url).read_into("file", 0, [memoryview(buffer)])
    assert buffer == bytes(100)
    assert not is_transient(refused.value)


def test_a_file_that_is_replaced_between_two_reads_is_noticed(serve: Serve, opened: Callable[..., Store]) -> None:
    server = serve(lambda request: request.answer_range(ETag=f'"{request.number // 2}"') or True)
    store = opened(server.url)
    read(store, 0, 10), read(store, 10, 10)
    with pytest.raises(Changed, match='ETag "1"'):
        read(store, 20, 10)
    store.size_bytes("file")  # from here on it is the new one that is read
    read(store, 20, 10)


def test_a_file_that_grows_between_two_reads_is_noticed(serve: Serve, opened: Callable[..., Store]) -> None:
    server = serve(lambda request: request.answer_range(CONTENT[: 1000 + request.number]) or True)
    store = opened(server.url)
    read(store, 0, 10)
    with pytest.raises(Changed, match="1001 bytes"):
        read(store, 0, 10)


def test_connections_are_kept_and_a_kept_one_that_was_closed_does_no_harm(
    serve: Serve, opened: Callable[..., Store]
) -> None:
    server = serve(lambda request: good(request) and request.number != 1)
    store = opened(server.url)
    for at in range(4):
        assert read(store, at, 10) == CONTENT[at : at + 10]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [("503 Busy", Unavailable), ("429 Slow down", Unavailable), ("403 No", AccessDenied), ("410 Gone", NotFound)],
)
def test_what_a_status_means(status: str, error: type[StoreError], serve: Serve, opened: Callable[..., Store]) -> None:
    server = serve(lambda request: request.answer(status))
    with pytest.raises(error, match=status[:3]):
        read(opened(server.url), 0, 10)


def test_a_size_is_found_where_head_is_not_allowed(serve: Serve, opened: Callable[..., Store]) -> None:
    def behave(request: Request) -> None:
        if request.method == "HEAD":
            request.answer("405 Method Not Allowed")
        else:
            request.answer_range()

    assert opened(serve(behave).url).size_bytes("file") == len(CONTENT)


def test_what_is_no_http_is_an_error_of_ours(serve: Serve, opened: Callable[..., Store]) -> None:
    with pytest.raises(Unavailable, match="broken reply"):
        read(opened(serve(lambda request: request.send(b"SSH-2.0 hello\r\n\r\n")).url), 0, 10)
    with pytest.raises(Unavailable):
        read(opened("http://127.0.0.1:1"), 0, 10)
    with pytest.raises(UserError, match="host"):
        opened("http:///path")
    with pytest.raises(UserError, match="no URL"):
        opened("http://host:port/path")


def test_redirects_are_followed_remembered_and_forgotten_when_they_expire(
    serve: Serve, opened: Callable[..., Store]
) -> None:
    def far(request: Request) -> bool:
        if "old" in request.path and len(target.requests) > 2:
            request.answer("403 Expired")
        else:
            request.answer_range()
        return True

    def near(request: Request) -> bool:
        place = f"{target.url}/signed?{'new' if request.number else 'old'}"
        request.answer("302 Found", b"see there", Location=place)
        return True

    target, origin = serve(far), serve(near)
    store = opened(origin.url, StoreOptions(token="secret", headers={"X-Team": "us"}))
    assert [read(store, at, 10) for at in (0, 10)] == [CONTENT[:10], CONTENT[10:20]]
    assert len(origin.requests) == 1
    with pytest.raises(Unavailable, match="asking again"):
        read(store, 20, 10)
    assert read(store, 20, 10) == CONTENT[20:30]
    assert origin.requests[0].headers["authorization"] == "Bearer secret"
    assert origin.requests[0].headers["x-team"] == "us"
    assert not any({"authorization", "x-team"} & request.headers.keys() for request in target.requests)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "/data/file", "http://127.0.0.1:99999/"])
def test_redirects_that_lead_nowhere_are_refused(place: str, serve: Serve, opened: Callable[..., Store]) -> None:
    server = serve(lambda request: request.answer("302 Found", Location=place))
    with pytest.raises(StoreError, match="redirect"):
        read(opened(server.url), 0, 10)
    assert len(server.requests) < 10


def test_credentials_are_not_shown(opened: Callable[..., Store]) -> None:
    store = opened("http://user:secret@127.0.0.1:1/folder?sig=hidden")
    with pytest.raises(Unavailable) as refused:
        read(store, 0, 10)
    assert str(refused.value).startswith("http://127.0.0.1:1/folder/file: ")
    assert "secret" not in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_read_that_is_called_off_ends_at_once(serve: Serve, opened: Callable[..., Store]) -> None:
    asked = threading.Event()

    def behave(request: Request) -> None:
        request.answer("206 Partial Content", CONTENT[:50], length=100, Content_Range="bytes 0-99/1000")
        asked.set()
        server.ended.wait(60)

    server = serve(behave)
    store, cancel = opened(server.url, StoreOptions(stall_s=120)), Cancellation()
    threading.Thread(target=lambda: (asked.wait(30), cancel.cancel()), daemon=True).start()
    with pytest.raises(Cancelled):
        store.read_into("file", 0, [memoryview(bytearray(100))], cancel)
    with pytest.raises(Cancelled):
        store.read_into("file", 0, [memoryview(bytearray(100))], cancel)


def test_a_slow_server_is_no_silent_one(serve: Serve, opened: Callable[..., Store]) -> None:
    """It takes longer than a stall to send what the kernel is asked to wake us for."""
    content = CONTENT * 2

    def behave(request: Request) -> None:
        request.answer(
            "206 Partial Content", length=len(content), Content_Range=f"bytes 0-{len(content) - 1}/{len(content)}"
        )
        for at in range(0, len(CONTENT), 1 << 17):
            server.ended.wait(0.8)
            request.send(content[at : at + (1 << 17)])
        request.send(content[len(CONTENT) :])

    server = serve(behave)
    assert read(opened(server.url, StoreOptions(stall_s=5.0)), 0, len(content)) == content


def test_a_connection_that_the_server_ends_is_closed_with_its_unread_reply(
    serve: Serve, opened: Callable[..., Store]
) -> None:
    server = serve(lambda request: request.answer("404 Not Found", b"x" * 100_000, Connection="close"))
    with pytest.raises(NotFound):
        read(opened(server.url), 0, 100)
    gc.collect()  # a socket that is still open would be an error here
    assert open_sockets_to(server.url) == 0


def open_sockets_to(url: str) -> int:
    port = urllib.parse.urlsplit(url).port
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    mine = {what_is(name) for name in os.listdir("/proc/self/fd")}
    return sum(row[2].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in mine for row in rows)


def what_is(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:  # closed since, by a thread of the server for one
        return ""


def test_a_page_in_a_files_stead_is_no_shorter_file(serve: Serve, opened: Callable[..., Store]) -> None:
    """A part that seems cut short is passed over, and an older checkpoint taken."""
    server = serve(lambda request: request.answer("200 OK", b"<html>log in</html>", Content_Type="text/html"))
    with pytest.raises(AccessDenied, match="a web page instead of it"):
        opened(server.url, QUICK).size_bytes("file")


def test_the_size_of_a_file_of_a_server_that_calls_everything_a_page(
    serve: Serve, opened: Callable[..., Store]
) -> None:
    server = serve(lambda request: request.answer("200 OK", CONTENT, Content_Type="text/html"))
    assert opened(server.url, QUICK).size_bytes("file") == len(CONTENT)
