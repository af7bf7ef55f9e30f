"""What strangers at the port, and agents gone wrong, cannot do to a controller."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import struct
import sys
from collections.abc import Iterator

import pytest
from controllers import PATIENCE_S, Recorder, hello_of, run, serving, until

from robust_run.launcher.control import frames, handshake, server
from robust_run.launcher.control.messages import ControlNotice, Heartbeat, HeartbeatReply, JoinRefused
from robust_run.launcher.control.peer import MOST_BACKLOG_BYTES
from robust_run.launcher.control.sockets import is_connected_to_itself, raise_file_limit, spoken

LINE = handshake.first_line(handshake.OURS)


async def answer_to(port, *sent: bytes) -> bytes:
    """Return all that a stranger hears who sends this and waits to be thrown out."""
    reader, writer = await port.raw()
    with contextlib.suppress(ConnectionError):
        for data in sent:
            writer.write(data)
            await writer.drain()
    heard = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            heard += data
    writer.close()
    return bytes(heard)


def sealed(connection, frame: bytes) -> bytes:
    """Return a frame as an agent sends it that was let in."""
    return frame + connection._half.sealer.seal(frame)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 1000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"robust-run " + b"1" * 1000,
        LINE + b"\xff\xff\xff\xff" + b"x" * 1000,
        LINE + frames.framed(b"\xc1" * 1000),
        LINE + frames.encode(Heartbeat(number=1)),
        LINE + (1 << 20).to_bytes(4, "big"),
    ],
    ids="zeros http tls-hello endless-line huge-length no-message heartbeat over-limit".split(),
)
def test_garbage_gets_a_refusal_and_an_agent_beside_it_gets_in(garbage: bytes) -> None:
    async def main() -> None:
        async with serving() as port:
            heard = await answer_to(port, garbage)
            assert heard.startswith(LINE)
            assert b"refused " in heard or b"\xa7refused" in heard
            connection = await port.dial()
            assert len(port.handler.hellos) == 1
            connection.close()

    run(main())


def test_strangers_that_stop_in_the_middle_are_thrown_out_in_time() -> None:
    sent = [b"", LINE[:5], LINE, LINE + b"\x00\x00", LINE + b"\x00\x00\xff\xff" + b"x" * 1000]

    async def main() -> None:
        async with serving(handshake_s=3.0) as port:  # a busy machine may stand still before it has read what they sent
            heard = await asyncio.gather(*(answer_to(port, each) for each in sent))
            assert heard[0] == b""
            assert all(each.startswith(LINE) for each in heard[1:]), heard
            await until(lambda: port.server.unproven == 0)

    run(main())


def test_a_stranger_that_sends_a_byte_now_and_then_is_thrown_out_in_time() -> None:
    async def main() -> None:
        async with serving(handshake_s=0.3) as port:
            reader, writer = await port.raw()
            left = bytearray(LINE + b"\x00\x00\xff\xff" + b"x" * 10_000)

            async def drip() -> None:
                with contextlib.suppress(ConnectionError):
                    while left:
                        writer.write(bytes((left.pop(0),)))
                        await writer.drain()
                        await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass
            assert left
            dripping.cancel()
            writer.close()

    run(main())


def test_a_truncated_frame_of_an_agent_is_dropped_with_its_connection() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            whole, half = frames.encode(ControlNotice(text="whole")), frames.encode(ControlNotice(text="half"))
            connection._transport.write(sealed(connection, whole) + sealed(connection, half)[:-1])
            connection.close()
            await until(lambda: port.handler.left)
            assert [message for _, message in port.handler.messages] == [ControlNotice(text="whole")]

    run(main())


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", frames.framed(b"\xc1"), frames.encode(hello_of("n1"))])
def test_garbage_of_an_agent_that_is_in_ends_its_connection(garbage: bytes) -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            connection._transport.write(sealed(connection, garbage))
            await until(lambda: port.handler.left)
            ((name, why),) = port.handler.left
            assert name == "id-n0"
            assert why.startswith("garbage: ")
            assert len(port.handler.hellos) == 1
            connection.close()

    run(main())


@pytest.fixture
def file_limit() -> Iterator[tuple[int, int]]:
    """The limit of open files, which is the same again after the test."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("file_limit")
def test_a_thousand_half_open_connections_do_not_keep_an_agent_out() -> None:
    raise_file_limit()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 3000:
        pytest.skip("needs 3000 open files")

    async def main() -> None:
        async with serving(most_unproven=100) as port:
            strangers = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(1000)]
            connection = await port.dial()
            assert 0 < port.server.unproven <= 100
            connection.send(ControlNotice(text="still in"))
            await until(lambda: port.handler.messages)
            for stranger in strangers:
                stranger.close()
            await until(lambda: port.server.unproven == 0)
            assert len(port.server.peers) == 1
            connection.close()

    run(main())


HELD = """
import errno, resource, select, socket, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
poll, held, most = select.epoll(), {}, min(int(sys.argv[2]), limit - 100)
seen = 0
while True:
    while len(held) < most:
        wire = socket.socket()
        wire.setblocking(False)
        if wire.connect_ex(("127.0.0.1", int(sys.argv[1]))) not in (0, errno.EINPROGRESS):
            wire.close()
            break
        held[wire.fileno()] = wire
        poll.register(wire.fileno(), select.EPOLLIN | select.EPOLLOUT)
    for number, events in poll.poll(0.05):
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            poll.unregister(number)
            held.pop(number).close()
        else:
            seen += 1
            poll.modify(number, select.EPOLLIN)
            if seen == most:
                print("full", flush=True)
"""


@pytest.mark.usefixtures("file_limit")
def test_thousands_of_held_connections_keep_no_heartbeat_waiting() -> None:
    """Strangers that dial again as soon as they are thrown out."""
    if raise_file_limit() < 3000:
        pytest.skip("needs 3000 open files")

    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            heard: list[object] = []
            connection.listen(heard.append, lambda why: None)
            program = (sys.executable, "-c", HELD, str(port.number), "5000")
            flood = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
            try:
                assert await flood.stdout.readline() == b"full\n"
                for number in range(20):
                    connection.send(Heartbeat(number=number))
                    await until(lambda: len(heard) > number)  # noqa: B023
                    assert port.server.unproven <= 1024
                assert port.handler.left == []
                newcomer = None
                while newcomer is None:  # the kernel drops who dials while its queue is full: agents dial again
                    with contextlib.suppress(OSError):
                        newcomer = await port.dial(hello_of("n1"))
                newcomer.close()
            finally:
                flood.kill()
                await flood.wait()
            connection.close()

    run(main())


def test_only_so_many_strangers_are_sent_away_for_others_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a flood costs the loop, which answers heartbeats too, is bounded."""
    monkeypatch.setattr(server, "SILENT_S", 0.0)

    async def main() -> None:
        async with serving(most_unproven=8) as port:
            times_s: list[float] = []
            take_in = port.server._take_in

            def timed(*connection: object) -> None:
                times_s.append(port.server.loop.time())
                take_in(*connection)

            port.server._take_in = timed
            strangers = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(200)]
            await until(lambda: len(times_s) == 200)
            at_once = server.ROOMS_AT_ONCE + 1
            for first_s, later_s in zip(times_s[8:], times_s[8 + at_once :], strict=False):
                assert later_s - first_s >= server.ROOMS_EVERY_S * 0.9  # timers may be a little early
            for stranger in strangers:
                stranger.close()

    run(main())


def test_many_honest_agents_at_once_all_get_in_though_few_may_be_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SILENT_S", "PATIENCE_S"):  # a busy machine may stand still before it has read their first word
        monkeypatch.setattr(server, name, PATIENCE_S)

    async def main() -> None:
        async with serving(most_unproven=8) as port:
            connections = await asyncio.gather(*(port.dial(hello_of(f"n{n}")) for n in range(200)))
            assert len(port.server.peers) == 200
            for connection in connections:
                connection.close()

    run(main())


def test_an_agent_that_never_reads_is_dropped_and_does_not_hold_the_memory() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            connection._transport.pause_reading()
            (peer,) = port.server.peers
            frame = frames.encode(JoinRefused(reason="x" * (1 << 20)))
            sent = 0
            while not peer.ended:
                peer.send_frame(frame)
                sent += len(frame)
                assert sent < MOST_BACKLOG_BYTES + (64 << 20)  # what the kernel takes, and some
                await asyncio.sleep(0)
            await until(lambda: port.handler.left)
            assert port.handler.left == [("id-n0", "left more than 64 MiB unread")]
            assert sent > MOST_BACKLOG_BYTES
            connection.abort()

    run(main())


def test_an_agent_that_hangs_up_hard_is_gone() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            wire = connection._transport.get_extra_info("socket")
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.abort()
            await until(lambda: port.handler.left)
            assert port.handler.left[0][0] == "id-n0"

    run(main())


class FullListener:
    """A listening socket whose accept fails as in a process without free file descriptors, the first few times."""

    def __init__(self, listener: socket.socket, failures: int) -> None:
        self.listener = listener
        self.failures = failures

    def accept(self):
        if self.failures > 0:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self.listener.accept()

    def __getattr__(self, name):
        return getattr(self.listener, name)


def test_a_process_without_free_file_descriptors_says_so_once_and_goes_on_accepting() -> None:
    async def main() -> None:
        async with serving() as port:
            full = FullListener(port.server._listener, failures=2)
            port.server._listener = full
            connection = await port.dial()
            assert full.failures == 0
            (text,) = port.handler.troubles
            assert text.startswith("cannot accept more connections: Too many open files; 0 agents are connected")
            connection.close()

    run(main())


def test_strangers_cannot_fill_the_journal() -> None:
    async def main() -> None:
        async with serving() as port:
            for number in range(500):
                port.server.say_once(f"stranger {number}")
                port.server.say_once(f"stranger {number}")
            assert port.handler.troubles == [f"stranger {number}" for number in range(200)]

    run(main())


def test_a_refused_stranger_that_stays_is_cut_off() -> None:
    async def main() -> None:
        async with serving(Recorder(JoinRefused(reason="full"))) as port:
            reader, writer = await port.raw()
            writer.write(b"garbage")
            assert (await reader.read()).startswith(LINE + b"refused ")
            await until(lambda: port.server.unproven == 0)  # though it never closed
            writer.close()

    run(main())


def test_the_server_closes_while_strangers_and_agents_are_connected() -> None:
    async def main() -> None:
        async with serving() as port:
            strangers = [await port.raw() for _ in range(20)]
            connection = await port.dial()
            await until(lambda: port.server.unproven == 20)
            heard: list[object] = []
            ends: list[str] = []
            connection.listen(heard.append, ends.append)
            port.server.send_all(port.server.peers, HeartbeatReply(number=1, term=1))
            await port.server.close()
            await until(lambda: ends)
            assert heard == [HeartbeatReply(number=1, term=1)]
            assert (len(port.server.peers), port.server.unproven) == (0, 0)
            for _, writer in strangers:
                writer.close()

    run(main())


def test_the_limit_of_open_files_is_raised_to_what_is_allowed(file_limit: tuple[int, int]) -> None:
    hard = file_limit[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(file_limit[0], hard - 1), hard))
    assert raise_file_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize(
    ("host", "text"), [("gpu-0", "gpu-0:1"), ("10.0.0.1", "10.0.0.1:1"), ("fd00::1", "[fd00::1]:1")]
)
def test_addresses_are_written_as_people_write_them(host: str, text: str) -> None:
    assert spoken(host, 1) == text


def test_a_socket_that_dialled_itself_is_no_controller() -> None:
    with socket.socket() as itself, socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as wire:
        itself.bind(("127.0.0.1", 0))
        itself.connect(itself.getsockname())
        assert is_connected_to_itself(itself)
        wire.connect(other.getsockname())
        assert not is_connected_to_itself(wire)
