"""The API over real sockets: who is let in, what is answered, and that nobody who connects can harm the job."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError
from robust_run.launcher.model.events import SignalReceived, Tick
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted, RestartAsked
from robust_run.launcher.operator.reading.client import ApiTarget, NoAnswerError, node_path
from robust_run.launcher.operator.reading.place import ApiEndpoint, read_place, write_place
from robust_run.launcher.operator.server.access import may_read
from robust_run.launcher.operator.server.connections import MOST_CONNECTIONS
from robust_run.launcher.operator.server.routes import Api
from robust_run.launcher.operator.server.server import HttpPlace
from robust_run.launcher.operator.views.operations import OperatorWish
from robust_run.launcher.operator.views.status_types import ActionView, EventsView, JobView, NodesView
from robust_run.launcher.records.token import reading_token

Serve = Callable[..., Any]
TCP = HttpPlace(address="127.0.0.1", name="127.0.0.1")
JSON = {"Content-Type": "application/json"}


# --- asking and acting ---


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_a_job_answers_over_both_ways(serve: Serve, way: str) -> None:
    served = serve(http_place=TCP)
    target = served.unix() if way == "unix" else served.tcp()
    job = msgspec.json.decode(target.get("/v1/status"), type=JobView)
    nodes = msgspec.json.decode(target.get("/v1/nodes"), type=NodesView).nodes
    assert (job.alive, job.phase, job.nodes_active, job.world_size) == (True, "running", 4, 32)
    assert [node.name for node in nodes] == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    assert nodes[0].silent_s == 0.4


def test_actions_reach_the_core_with_who_and_why(serve: Serve) -> None:
    served = serve()
    wish = OperatorWish(reason="bad memory", by="ann@desk")
    served.controller.told.clear()
    for path in (node_path("gpu-2", "evict"), node_path("gpu-2", "readmit")):
        served.unix().post(path, wish)
    evicted, readmitted = served.controller.told
    assert isinstance(evicted, NodeEvicted)
    assert (evicted.name, evicted.reason, evicted.by) == ("gpu-2", "bad memory", "ann@desk")
    assert evicted.at_unix_s > 1e9
    assert readmitted == NodeReadmitted(name="gpu-2", by="ann@desk")


def test_restart_and_stop_reach_the_core(serve: Serve) -> None:
    served = serve()
    served.controller.told.clear()
    served.unix().post("/v1/restart", OperatorWish(reason="stuck"))
    served.unix().post("/v1/stop", OperatorWish(by="ann"))
    assert served.controller.told == [RestartAsked(reason="stuck"), SignalReceived(signal=15, by="ann")]


def test_the_answer_warns_of_what_the_job_will_lack(serve: Serve) -> None:
    answer = serve().unix().post(node_path("gpu-2", "evict"), OperatorWish())
    assert "the job will wait" in msgspec.json.decode(answer, type=ActionView).warning


def test_a_name_with_slashes_and_spaces_is_a_name(serve: Serve) -> None:
    served = serve()
    with pytest.raises(PlatformError, match=r"no node '\.\./a b%2f' in this job"):
        served.unix().post(node_path("../a b%2f", "evict"), OperatorWish())


class MisspelledWish(msgspec.Struct):
    """What somebody sends who has not read the documentation."""

    resaon: str = "bad memory"


def test_a_field_that_nobody_knows_is_refused(serve: Serve) -> None:
    served = serve()
    with pytest.raises(PlatformError, match="unknown field `resaon`"):
        served.unix().post("/v1/restart", MisspelledWish())
    assert not any(isinstance(event, RestartAsked) for event in served.controller.told)


def test_a_browser_gets_the_status_as_text(serve: Serve) -> None:
    text = serve().unix().get("/").decode()
    assert text.startswith("running: attempt 0 on 4 nodes (32 ranks)")
    assert "gpu-4" in text


def test_many_questions_at_once_are_all_answered(serve: Serve) -> None:
    target = serve().unix()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: json.loads(target.get("/v1/status"))["phase"], range(48)))
    assert answers == ["running"] * 48


def test_a_fault_of_the_controller_is_told_to_who_asked_and_ends_nothing(serve: Serve) -> None:
    served = serve()
    served.controller.fault = KeyError("members")
    with pytest.raises(PlatformError, match="KeyError"):
        served.unix().get("/v1/status")
    served.controller.fault = None
    assert served.unix().get("/v1/status")


# --- events ---


def page(target: ApiTarget, **query: float) -> EventsView:
    return msgspec.json.decode(target.get("/v1/events", query, wait_s=query.get("wait", 0)), type=EventsView)


def test_events_are_the_lines_of_the_journal_by_number(serve: Serve) -> None:
    served = serve()
    lines = Path(served.controller.journal_path).read_bytes().splitlines()
    whole = page(served.unix())
    assert [bytes(event.line) for event in whole.events] == lines[1:]
    assert [event.index for event in whole.events] == list(range(1, len(lines)))
    some = page(served.unix(), after=3, limit=2)
    assert ([event.index for event in some.events], some.next) == ([3, 4], 5)
    assert [event.index for event in page(served.unix(), after=-2).events] == [len(lines) - 2, len(lines) - 1]


def test_who_waits_for_news_gets_them_when_they_come(serve: Serve) -> None:
    served = serve()
    end = page(served.unix()).next
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(page, served.unix(), after=end, wait=30)
        page(served.unix())
        served.on_loop(lambda: served.controller.tell(Tick()))
        news = waiting.result(60)
    assert b"tick" in bytes(news.events[0].line)
    assert news.events[0].index == end


def test_who_waits_is_answered_when_the_job_ends(serve: Serve) -> None:
    served = serve()
    end = page(served.unix()).next
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(page, served.unix(), after=end, wait=30)
        page(served.unix())  # the one before has been sent
        served.end()
        with suppress(NoAnswerError):  # it had not been let in yet
            assert waiting.result(60).events == ()
    assert served.faults == []


@pytest.mark.parametrize("query", ["after=x", "limit=0", "limit=1e9", "wait=nan", "wait=-1", "after=inf"])
def test_numbers_out_of_range_are_refused(serve: Serve, query: str) -> None:
    with pytest.raises(PlatformError, match="is no number from"):
        serve().unix().get(f"/v1/events?{query}")


# --- who is let in ---


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer \u00e9",
        "Basic !!!",
        "Basic OndyeW9uZw==",
        "Digest 0123456789abcdef",
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/status"), ("POST", "/v1/stop"), ("GET", "/"), ("GET", "/x")])
def test_over_tcp_nothing_is_told_or_done_without_the_token(
    serve: Serve, header: str | None, method: str, path: str
) -> None:
    served = serve(http_place=TCP)
    served.controller.told.clear()
    headers = {**JSON, **({"Authorization": header} if header else {})}
    status, answer = served.http(method, path, b"{}" if method == "POST" else None, headers)
    assert status == 401
    assert list(answer) == ["error"]
    assert served.controller.told == []


def test_a_wrong_token_is_refused_in_words(serve: Serve) -> None:
    with pytest.raises(PlatformError, match="token"):
        serve(http_place=TCP).tcp("wrong").get("/v1/status")


def test_a_browser_sends_the_token_as_a_password(serve: Serve, token: str) -> None:
    import base64

    served = serve(http_place=TCP)
    basic = base64.b64encode(f"anyone:{token}".encode()).decode()
    status, answer = served.http("GET", "/v1/status", headers={"Authorization": f"Basic {basic}"})
    assert (status, answer["phase"]) == (200, "running")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_an_action_that_a_page_of_another_site_could_send_is_refused(
    serve: Serve, authorised: dict[str, str], content_type: str
) -> None:
    served = serve(http_place=TCP)
    served.controller.told.clear()
    status, _ = served.http("POST", "/v1/stop", b"{}", {**authorised, "Content-Type": content_type})
    assert status == 415
    assert served.controller.told == []


def test_an_action_is_a_post(serve: Serve, authorised: dict[str, str]) -> None:
    served = serve(http_place=TCP)
    assert served.http("GET", "/v1/stop", headers=authorised)[0] == 405
    assert served.http("GET", "/v1/nothing", headers=authorised)[0] == 404


def test_socket_and_place_belong_to_their_owner_alone(serve: Serve) -> None:
    served = serve()
    for name in ("api.sock", "api.json"):
        assert stat.S_IMODE((served.run_directory / name).stat().st_mode) == 0o600


def test_without_a_token_no_port_is_served(run_directory: Path, make_controller: Callable[..., Any]) -> None:
    import asyncio

    from robust_run.clock import SystemClock
    from robust_run.launcher.operator.server.server import ApiServer

    said: list[str] = []

    async def serve_without() -> ApiEndpoint | None:
        server = ApiServer(make_controller(), str(run_directory), "", SystemClock(), said.append, TCP)
        server.start()
        await server.close()
        return server.place

    place = asyncio.run(serve_without())
    assert place is not None
    assert place.http == ""
    assert "token" in said[0]


# --- what strangers send ---


def test_a_body_larger_than_64_kib_is_refused(serve: Serve, authorised: dict[str, str]) -> None:
    served = serve(http_place=TCP)
    served.controller.told.clear()
    body = json.dumps({"reason": "x" * (70 << 10)}).encode()
    try:
        status, _ = served.http("POST", "/v1/stop", body, {**authorised, **JSON})
        assert status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # cut off while sending
    assert served.controller.told == []


@pytest.mark.parametrize("body", [b"[]", b"nonsense", b'{"reason": 7}', b"\xff\xfe", b"[" * 50_000])
def test_a_body_that_is_no_wish_is_refused(serve: Serve, authorised: dict[str, str], body: bytes) -> None:
    served = serve(http_place=TCP)
    served.controller.told.clear()
    status, answer = served.http("POST", "/v1/stop", body, {**authorised, **JSON})
    assert status == 400
    assert answer["error"].startswith("the body is not a request for this action")
    assert served.controller.told == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 4096,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/" * 100_000,
        b"POST /v1/stop HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/stop HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_garbage_harms_nobody(serve: Serve, garbage: bytes) -> None:
    served = serve(http_place=TCP)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as stranger:
        with suppress(OSError):  # cut off while sending
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
        while True:
            try:
                if not stranger.recv(65536):
                    break
            except ConnectionResetError:
                break
    assert served.tcp().get("/v1/status")
    assert served.complaints == []


def test_more_half_open_connections_than_there_is_room_for_do_not_keep_others_out(serve: Serve) -> None:
    served = serve(http_place=TCP)
    strangers = []
    try:
        for _ in range(3 * MOST_CONNECTIONS):
            stranger = socket.create_connection(("127.0.0.1", served.port), timeout=60)
            stranger.sendall(b"GET /v1/sta")
            strangers.append(stranger)
        assert served.tcp().get("/v1/status")
        assert served.unix().get("/v1/status")
    finally:
        for stranger in strangers:
            stranger.close()


def test_strangers_have_few_places_and_each_has_its_own_for_a_moment(tmp_path: Path) -> None:
    """A flood costs the loop that keeps leases alive a bounded number of connections a second."""
    import asyncio

    from robust_run.launcher.operator.server.connections import FAIR_S, MOST_STRANGERS, ApiConnections

    class Silent(asyncio.Protocol):
        def __init__(self) -> None:
            made.append(self)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            held.append(transport.get_extra_info("socket"))

    made: list[asyncio.BaseProtocol] = []
    accepted_s: dict[asyncio.BaseProtocol, float] = {}
    held: list[socket.socket] = []

    async def flood() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setblocking(False)
        owners = socket.socket(socket.AF_UNIX)
        owners.bind(str(tmp_path / "sock"))
        owners.listen()
        owners.setblocking(False)
        connections = ApiConnections({listener: False, owners: True}, None, head_s=600.0)
        connections.accept(Silent)
        strangers = [socket.create_connection(listener.getsockname()) for _ in range(3 * MOST_STRANGERS)]
        while len(accepted_s) < 3 * MOST_STRANGERS:
            await asyncio.sleep(0.01)
            accepted_s.update({each: its.accepted_s for each, its in connections._connections.items()})
        for before, after in zip(made, made[MOST_STRANGERS:], strict=False):
            assert accepted_s[after] - accepted_s[before] >= FAIR_S  # whose place it took
        assert len(connections._connections) == MOST_STRANGERS
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "sock"))
        while len(made) == 3 * MOST_STRANGERS:
            await asyncio.sleep(0.01)
        assert len(connections._connections) == MOST_STRANGERS + 1
        writer.close()
        await connections.close()
        while any(each.fileno() >= 0 for each in held):
            await asyncio.sleep(0.01)
        for each in (listener, owners, *strangers):
            each.close()

    asyncio.run(flood())


@pytest.mark.parametrize("size", [1_000, 200_000, 240_000, 260_000, 1_000_000])
def test_a_connection_whose_last_bytes_went_out_late_can_be_cut(tmp_path: Path, size: int) -> None:
    """asyncio forgets the loop of one that was closed with bytes to send, and its `abort` fails from then on."""
    import asyncio

    from robust_run.launcher.operator.server.connections import ApiConnections

    async def ask_and_cut() -> int:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        listener.setblocking(False)
        connections = ApiConnections({listener: True}, None)
        connections.accept(lambda: Answering(size))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "sock"), limit=1 << 10)
        await asyncio.sleep(0.1)  # it is closed with bytes unsent now, if there are so many
        got = len(await reader.read(-1))
        await connections.close()
        writer.close()
        listener.close()
        return got

    class Answering(asyncio.Protocol):
        def __init__(self, size: int) -> None:
            self.size = size

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"x" * self.size)
            transport.close()

    assert asyncio.run(ask_and_cut()) == size


def test_who_sends_too_slowly_is_cut_off(serve: Serve) -> None:
    served = serve(http_place=TCP)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as slow:
        slow.sendall(b"GET /v1/status HTTP/1.1\r\nX-Slow: ")
        assert served.tcp().get("/v1/status")  # others are served meanwhile
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""  # the server ends it; the test's own timeout would raise


def test_a_body_that_never_comes_is_given_up(serve: Serve, authorised: dict[str, str]) -> None:
    served = serve(http_place=TCP)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request("POST", "/v1/stop", None, {**authorised, **JSON, "Content-Length": "10"})
    assert connection.getresponse().status == 408
    connection.close()


def test_a_body_that_comes_in_pieces_is_put_together(serve: Serve, authorised: dict[str, str]) -> None:
    served = serve(http_place=TCP)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request("POST", "/v1/checks", b'{"nodes": [', {**authorised, **JSON, "Content-Length": "21"})
    assert served.tcp().get("/v1/status")  # by now the first piece is there
    connection.send(b'"nobody"]}')
    answer = connection.getresponse()
    assert b"is not a request" not in answer.read()
    connection.close()


# --- starting and ending ---


def test_aiohttp_is_imported_when_the_first_one_asks_and_not_before(tmp_path: Path) -> None:
    program = """
import asyncio, sys, threading
sys.path.insert(0, sys.argv[1])
from robust_run.clock import SystemClock
from robust_run.launcher.operator.reading.client import ApiTarget
from robust_run.launcher.operator.server.server import ApiServer

async def main():
    server = ApiServer(Handle(), sys.argv[2], "t", SystemClock(), print)
    server.start()
    before = "aiohttp" in sys.modules, "json" in sys.modules, "ssl" in sys.modules and "http" in sys.modules
    target = ApiTarget(socket=sys.argv[2] + "/api.sock")
    answers = []
    def ask():
        try:
            answers.append(target.get("/v1/nothing", wait_s=60.0))
        except Exception as error:
            answers.append(str(error))
    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.01)
    print(before[0], "aiohttp" in sys.modules, answers[0])
    await server.close()

class Handle:
    journal_path = ""

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "False True GET /v1/nothing: Not Found\n", done.stderr


def test_a_path_longer_than_a_sockets_address_is_no_obstacle(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / "run"
    folder.mkdir(parents=True)
    served = serve(folder=folder)
    assert served.unix().get("/v1/status")
    assert served.complaints == []


def test_a_socket_that_a_killed_controller_left_is_replaced(serve: Serve, run_directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(run_directory / "api.sock"))
    assert serve().unix().get("/v1/status")


def test_the_end_removes_the_socket_and_the_place(serve: Serve) -> None:
    served = serve()
    assert read_place(str(served.run_directory)) == served.place
    served.end()
    assert sorted(path.name for path in served.run_directory.iterdir()) == ["journal.jsonl"]


def test_the_end_leaves_what_the_next_controller_has_put_there(serve: Serve) -> None:
    served = serve()
    other = msgspec.structs.replace(served.place, pid=1)
    write_place(str(served.run_directory), other)
    (served.run_directory / "api.sock").unlink()
    (served.run_directory / "api.sock").write_text("another's")
    served.end()
    assert read_place(str(served.run_directory)) == other
    assert (served.run_directory / "api.sock").exists()


def test_a_port_in_use_is_said_and_a_free_one_is_taken(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve(http_place=msgspec.structs.replace(TCP, port=port))
    assert served.port != port
    assert served.tcp().get("/v1/status")
    assert str(port) in served.complaints[0]


def test_a_folder_that_takes_no_files_leaves_the_job_alone(serve: Serve, tmp_path: Path, run_directory: Path) -> None:
    from robust_run.launcher.operator.reading.place import listen_unix

    with pytest.raises(OSError):
        listen_unix(str(tmp_path / "missing" / "api.sock"))
    (run_directory / "api.sock").mkdir()  # cannot be replaced by a socket
    served = serve(http_place=TCP)
    assert served.tcp().get("/v1/status")
    assert served.place.socket == ""
    assert "robust status" in served.complaints[0]


def test_only_this_machine_is_listened_to_by_default(serve: Serve) -> None:
    served = serve(http_place=HttpPlace(name="gpu-7"))
    assert served.tcp().get("/v1/status")
    assert served.place.http == f"http://127.0.0.1:{served.port}"
    assert served.place.is_loopback
    with socket.socket() as other:  # the port is free at every other address of this machine
        other.bind(("127.0.0.2", served.port))


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_all_addresses_are_listened_on_where_that_is_asked_for(serve: Serve, address: str) -> None:
    served = serve(http_place=HttpPlace(address=address))
    assert served.tcp().get("/v1/status")
    assert served.place.http == f"http://{socket.gethostname()}:{served.port}"
    assert not served.place.is_loopback


def test_an_address_of_this_machine_is_what_the_others_are_told(serve: Serve) -> None:
    served = serve(http_place=HttpPlace(address="127.0.0.3", name="gpu-7"))
    assert served.place.http == f"http://127.0.0.3:{served.port}"


def test_an_address_that_is_not_this_machines_is_said_and_the_job_goes_on(serve: Serve) -> None:
    served = serve(http_place=HttpPlace(address="203.0.113.7", port=80))
    assert served.place.http == ""
    assert served.complaints[0].startswith("--http-port 80 on --http-host 203.0.113.7: ")
    assert served.complaints[-1].endswith("; the job goes on without a web server")


# --- the token that may only read ---

READABLE = ("/", "/report.html", "/page", "/metrics", "/v1/status", "/v1/nodes", "/v1/live", "/v1/incidents")
CLOSED = (
    ("GET", "/v1/events"),
    ("GET", "/v1/scene"),
    ("GET", "/v1/code"),
    ("GET", f"/v1/code/parts/{'0' * 64}"),
    ("GET", "/v1/checks/1"),
    ("GET", "/incidents/0001.scene.json"),
    ("GET", "/attempt_0/1/stderr.log"),
    ("GET", "/v1/anything-of-a-later-version"),
    ("POST", "/v1/traces"),
    ("POST", "/v1/nodes/n/evict"),
    ("POST", "/v1/nodes/n/readmit"),
    ("POST", "/v1/restart"),
    ("POST", "/v1/stop"),
    ("POST", "/v1/checks"),
    ("POST", "/v1/code/parts"),
    ("POST", "/v1/code/update"),
    ("POST", "/v1/code/refused"),
    ("POST", "/v1/code/rollback"),
    ("POST", "/v1/status"),
    ("DELETE", "/"),
)


def test_the_reading_token_shows_numbers_status_and_pages(serve: Serve, token: str) -> None:
    served = serve(http_place=TCP)
    password = base64.b64encode(f"anybody:{reading_token(token)}".encode()).decode()
    for path in READABLE:
        for header in (f"Bearer {reading_token(token)}", f"Basic {password}"):
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            connection.request("GET", path, headers={"Authorization": header})
            assert connection.getresponse().status == 200, path
            connection.close()


def test_the_reading_token_does_nothing_and_shows_neither_code_nor_stacks_nor_the_journal(
    serve: Serve, token: str
) -> None:
    served = serve(http_place=TCP)
    for method, path in CLOSED:
        headers = {"Authorization": f"Bearer {reading_token(token)}", **JSON}
        status, answer = served.http(method, path, b"{}" if method == "POST" else None, headers)
        assert status == 403, (method, path)
        assert "this token may only look" in answer["error"]


def test_every_route_is_of_a_known_kind(make_controller: Callable[..., Any]) -> None:
    """A new route is closed to the reading token until it is named as open, here and there."""
    app = Api(make_controller(), SystemClock(), "t" * 64, None).application()
    routes = {(route.method, route.resource.canonical) for route in app.router.routes()}
    opened = {path for method, path in routes if method == "GET" and may_read("GET", path)}
    assert opened == {*READABLE, "/incidents/{name}"}
    assert {(method, path.replace("/n/", "/{name}/")) for method, path in CLOSED if "/v1/" in path} >= {
        each for each in routes if each[0] == "POST"
    }
    assert not any(may_read(method, path) for method, path in routes if method != "GET")


# --- TLS ---


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a file with a self-signed certificate, and its key beside it as `key.pem`."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=some-node -keyout key.pem -out cert.pem"
    try:
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"openssl cannot make a certificate: {error}")
    return tmp_path / "cert.pem"


def test_with_a_certificate_the_port_speaks_tls_and_nothing_else(serve: Serve, certificate: Path, token: str) -> None:
    key = str(certificate.with_name("key.pem"))
    served = serve(http_place=msgspec.structs.replace(TCP, tls_cert=str(certificate), tls_key=key))
    assert served.place.http.startswith("https://")
    target = ApiTarget(url=served.place.http, token=token, tls_ca=str(certificate))
    assert json.loads(target.get("/v1/status"))["phase"] == "running"
    with pytest.raises(NoAnswerError):
        served.tcp().get("/v1/status")
    with pytest.raises(NoAnswerError, match="certificate"):
        ApiTarget(url=served.place.http, token=token).get("/v1/status")
    assert served.unix().get("/v1/status")  # plain, as it never leaves the machine


def test_connections_that_never_agree_on_tls_keep_nobody_out(serve: Serve, certificate: Path, token: str) -> None:
    key = str(certificate.with_name("key.pem"))
    served = serve(http_place=msgspec.structs.replace(TCP, tls_cert=str(certificate), tls_key=key))
    strangers = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2 * MOST_CONNECTIONS)]
    try:
        strangers[0].sendall(b"hello\r\n\r\n")
        assert ApiTarget(url=served.place.http, token=token, tls_ca=str(certificate)).get("/v1/status")
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_certificate_that_cannot_be_used_is_said_and_no_port_is_served(serve: Serve, tmp_path: Path) -> None:
    served = serve(http_place=msgspec.structs.replace(TCP, tls_cert=str(tmp_path / "none.pem")))
    assert "none.pem" in served.complaints[0]
    assert served.place.http == ""
    assert served.unix().get("/v1/status")
