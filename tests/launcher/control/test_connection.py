"""Agents and a controller's port over real sockets: joining, messages, heartbeats, refusals, the end of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from controllers import TOKEN, Port, Recorder, hello_of, refusing, run, serving, until

from robust_run.errors import UserError
from robust_run.launcher.control import frames, handshake
from robust_run.launcher.control.client import dial
from robust_run.launcher.control.errors import JoinRefusal, NotController, VersionMismatch, WrongToken
from robust_run.launcher.control.handshake import Speaks
from robust_run.launcher.control.messages import (
    Challenge,
    ControlNotice,
    EventReport,
    FromController,
    Heartbeat,
    HeartbeatReply,
    JoinRefused,
    Leaving,
    Orders,
)
from robust_run.launcher.control.server import ControlServer
from robust_run.launcher.model.actions import Dismiss
from robust_run.launcher.model.events import RankExited

OTHER = Speaks(3, "0.9")


def test_an_agent_joins_and_both_know_each_other() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial(hello_of("gpu-3"))
            assert (connection.welcome.term, connection.welcome.candidates) == (7, ("a:1", "b:2"))
            (peer,) = port.server.peers
            assert (peer.id, peer.name, port.server.unproven) == ("id-gpu-3", "gpu-3", 0)
            connection.close()
            await until(lambda: port.handler.left)
            assert port.handler.left == [("id-gpu-3", "closed the connection")]
            assert not port.server.peers

    run(main())


def test_messages_arrive_in_order_in_both_directions() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            heard: list[FromController] = []
            connection.listen(heard.append, lambda why: None)
            sent = [
                EventReport(events=(RankExited(attempt=0, rank=3, exit_code=1),)),
                *(ControlNotice(text=str(number)) for number in range(100)),
                ControlNotice(text="x" * (5 << 20)),
                Leaving(reason="done"),
            ]
            for message in sent:
                connection.send(message)
            orders = [Orders(term=7, orders=(Dismiss(node=str(n), exit_code=0, reason="bye"),)) for n in range(100)]
            for order in orders:
                port.handler.peers[0].send(order)
            await until(lambda: len(port.handler.messages) == len(sent) and len(heard) == len(orders))
            assert [message for _, message in port.handler.messages] == sent
            assert heard == orders
            connection.close()

    run(main())


def test_what_is_sent_before_the_agent_listens_waits_for_it() -> None:
    class Greeter(Recorder):
        def joined(self, peer, hello):
            peer.send(HeartbeatReply(number=1, term=7))  # even before its Welcome
            return super().joined(peer, hello)

    async def main() -> None:
        async with serving(Greeter()) as port:
            connection = await port.dial()
            port.handler.peers[0].send(HeartbeatReply(number=2, term=7))
            port.handler.peers[0].close("enough")
            heard: list[FromController] = []
            ends: list[str] = []
            await until(lambda: connection._is_lost)
            connection.listen(heard.append, ends.append)
            assert heard == [HeartbeatReply(number=1, term=7), HeartbeatReply(number=2, term=7)]
            assert len(ends) == 1
            assert port.handler.left == [("id-n0", "enough")]

    run(main())


def test_heartbeats_are_answered_by_a_leader_and_by_nobody_else() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            heard: list[FromController] = []
            connection.listen(heard.append, lambda why: None)
            connection.send(Heartbeat(number=1))
            await until(lambda: heard)
            port.server.beat_term = None
            connection.send(Heartbeat(number=2))
            connection.send(ControlNotice(text="it has arrived"))
            await until(lambda: port.handler.messages)
            port.server.beat_term = 8
            connection.send(Heartbeat(number=3))
            await until(lambda: len(heard) == 2)
            assert heard == [HeartbeatReply(number=1, term=7), HeartbeatReply(number=3, term=8)]
            assert len(port.handler.messages) == 1
            connection.close()

    run(main())


def test_every_message_is_a_sign_of_life() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            (peer,) = port.server.peers
            joined_s = peer.last_heard_s
            connection.send(Heartbeat(number=1))
            await until(lambda: peer.last_heard_s > joined_s)
            connection.close()

    run(main())


def test_the_difference_of_the_clocks_is_known_and_creeps_up_only_slowly() -> None:
    async def main() -> None:
        async with serving() as port:
            now_s = port.server.clock.monotonic_s
            connection = await port.dial(hello_of("n0", now_s=now_s() - 3600.0))
            (peer,) = port.server.peers
            assert 3600.0 <= peer.clock_ahead_s < 3600.0 + 30.0
            at_first_s = peer.clock_ahead_s
            connection.send(Heartbeat(number=1, now_s=now_s() - 3700.0))  # as if it had been on its way for long
            connection.send(ControlNotice(text="sent"))
            await until(lambda: port.handler.messages)
            assert at_first_s < peer.clock_ahead_s < at_first_s + 0.01
            connection.send(Heartbeat(number=2, now_s=now_s() - 3500.0))
            await until(lambda: peer.clock_ahead_s < 3550.0)
            connection.close()

    run(main())


def test_one_message_for_many_is_encoded_once_and_reaches_all() -> None:
    async def main() -> None:
        async with serving() as port:
            heard: list[FromController] = []
            connections = [await port.dial(hello_of(f"n{n}")) for n in range(5)]
            for connection in connections:
                connection.listen(heard.append, lambda why: None)
            port.server.send_all(port.server.peers, HeartbeatReply(number=9, term=7))
            await until(lambda: len(heard) == 5)
            assert heard == [HeartbeatReply(number=9, term=7)] * 5
            for connection in connections:
                connection.close()

    run(main())


@pytest.mark.parametrize("final", [True, False])
def test_a_refusal_of_the_handler_reaches_the_agent(final: bool) -> None:
    async def main() -> None:
        recorder = Recorder(JoinRefused(reason="n0 was evicted: smoke", final=final))
        async with serving(recorder) as port:
            with pytest.raises(JoinRefusal, match="refuses: n0 was evicted: smoke") as refusal:
                await port.dial(hello_of("n0", events=(RankExited(attempt=0, rank=0, exit_code=1),)))
            assert refusal.value.final == final
            await until(lambda: port.server.unproven == 0)
            assert recorder.left == []

    run(main())


def test_a_wrong_token_is_said_on_both_sides() -> None:
    async def main() -> None:
        async with serving() as port:
            told: list[tuple[str, str]] = []
            port.server.on_refused = lambda address, why: told.append((address, why))
            with pytest.raises(
                WrongToken, match=r"ROBUST_TOKEN or --token-file.*--run-id .*; another job may use this port"
            ):
                await port.dial(token=b"guess")
            ((address, why),) = told
            assert address.startswith("127.0.0.1:")
            assert why.startswith("its token differs")
            assert port.handler.hellos == []
            (text,) = port.handler.troubles
            assert "turned away: the agent at 127.0.0.1:" in text
            assert "its token differs" in text

    run(main())


def test_a_controller_that_only_pretends_to_know_the_token_is_left() -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        challenge = handshake.first_line(handshake.OURS) + frames.encode(Challenge(nonce=b"c" * 32))
        server = await asyncio.start_server(lambda reader, writer: answer(reader, writer), sock=listener)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(challenge)
            await reader.readline()
            await reader.read(10)
            writer.write(frames.encode(welcome))
            await reader.read()
            writer.close()

        welcome = Recorder().joined(None, hello_of("n0"))
        with pytest.raises(WrongToken, match="differs from this agent's"):
            await dial("127.0.0.1", listener.getsockname()[1], TOKEN, hello_of("n0"), timeout_s=30.0)
        server.close()
        await server.wait_closed()

    run(main())


def test_an_agent_of_another_version_and_the_controller_both_say_so() -> None:
    async def main() -> None:
        async with serving() as port:
            with pytest.raises(VersionMismatch, match=r"speaks protocol 2 .*, this agent speaks 3 \(robust-run 0.9\)"):
                await port.dial(speaks=OTHER)
            await until(lambda: port.handler.troubles)
            assert "speaks protocol 3 (robust-run 0.9), this controller speaks 2" in port.handler.troubles[0]

    run(main())


def test_a_controller_of_another_version_refuses_in_a_line() -> None:
    async def main() -> None:
        async with serving(speaks=OTHER) as port:
            with pytest.raises(VersionMismatch, match="install the same version on all nodes"):
                await port.dial()
            reader, writer = await port.raw()
            writer.write(handshake.first_line(handshake.OURS))
            lines = (await reader.read()).splitlines()
            assert lines[0] == b"robust-run 3 0.9"
            assert lines[1].startswith(b"refused the agent at 127.0.0.1:")
            writer.close()

    run(main())


def test_nobody_listening_is_a_refused_connection() -> None:
    async def main() -> None:
        with refusing() as port:
            for host in ("127.0.0.1", "localhost"):  # the name may have several addresses: all of them refuse
                with pytest.raises(ConnectionRefusedError):
                    await dial(host, port, TOKEN, hello_of("n0"), timeout_s=30.0)

    run(main())


def test_a_name_that_does_not_exist_is_an_error_of_the_network() -> None:
    async def main() -> None:
        with pytest.raises(socket.gaierror):
            await dial("no-such-host.invalid", 1, TOKEN, hello_of("n0"), timeout_s=60.0)

    run(main())


def test_a_port_that_answers_nothing_times_out() -> None:
    async def main() -> None:
        timed_out = pytest.raises(TimeoutError, match=r"did not answer within 0\.2 s")
        with socket.create_server(("127.0.0.1", 0)) as silent, timed_out:
            await dial("127.0.0.1", silent.getsockname()[1], TOKEN, hello_of("n0"), timeout_s=0.2)

    run(main())


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", NotController, "answers, but not as a controller of robust-run"),
        (b"", ConnectionResetError, "closed the connection before it said anything"),
        (b"robust-run 2 0.1.0\n", ConnectionResetError, "closed the connection during the handshake"),
        (b"robust-run 2 0.1.0\n\x00\x00\x00\x01\xc1", NotController, "no message of this protocol"),
    ],
)
def test_what_a_port_is_that_is_no_controller(answer: bytes, error: type[Exception], text: str) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(error, match=text):
            await dial("127.0.0.1", port, TOKEN, hello_of("n0"), timeout_s=30.0)
        server.close()
        await server.wait_closed()

    run(main())


def test_the_agent_learns_once_that_the_controller_is_gone() -> None:
    async def main() -> None:
        ends: list[str] = []
        async with serving() as port:
            connection = await port.dial()
            connection.listen(lambda message: None, ends.append)
        await until(lambda: ends)
        connection.send(ControlNotice(text="into the void"))
        connection.close()
        assert ends == [f"127.0.0.1:{port.number} closed the connection"]
        assert port.handler.left == []  # it was the server that closed

    run(main())


def test_what_was_sent_before_an_orderly_close_arrives() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            heard: list[FromController] = []
            connection.listen(heard.append, lambda why: None)
            for number in range(1000):
                port.handler.peers[0].send(JoinRefused(reason=str(number)))
            port.handler.peers[0].close("evicted")
            await until(lambda: port.handler.left)
            await until(lambda: len(heard) == 1000)
            assert port.handler.left == [("id-n0", "evicted")]

    run(main())


def test_an_empty_token_protects_nothing_and_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(UserError, match="token of the job is empty"):
            ControlServer(b"", Recorder(), None)
        with pytest.raises(UserError, match="token of the job is empty"):
            await dial("127.0.0.1", 1, b"", hello_of("n0"), timeout_s=1.0)

    run(main())


def test_small_messages_of_one_turn_of_the_loop_go_in_one_write() -> None:
    async def main() -> None:
        async with serving() as port:
            connection = await port.dial()
            (peer,) = port.server.peers
            transport = peer.transport
            writes: list[bytes] = []

            class Spy:
                def write(self, data: bytes) -> None:
                    writes.append(data)

                def get_write_buffer_size(self) -> int:
                    return 0

            await until(lambda: not peer.backlog_bytes)  # its Welcome is on its way
            opener = connection._half.reader._opener
            peer.transport = Spy()
            beat = frames.encode(HeartbeatReply(number=1, term=1))
            for _ in range(50):
                peer.send(HeartbeatReply(number=1, term=1))
            assert peer.backlog_bytes == 50 * len(beat)
            await until(lambda: writes)
            reader = frames.FrameReader()
            reader.expect_seals(opener)
            reader.feed(b"".join(writes))
            assert [reader.next() for _ in range(51)] == [beat[frames.HEADER_BYTES :]] * 50 + [None]
            assert len(writes) == 1
            assert peer.backlog_bytes == 0
            peer.transport = transport
            connection.close()

    run(main())


async def one_by_one(port: Port, count: int) -> None:
    for number in range(count):
        connection = await port.dial(hello_of(f"n{number}"))
        connection.close()


def test_agents_come_and_go_and_leave_nothing_behind() -> None:
    async def main() -> None:
        async with serving() as port:
            await one_by_one(port, 50)
            await until(lambda: len(port.handler.left) == 50)
            assert (len(port.server.peers), port.server.unproven) == (0, 0)

    run(main())
