"""RAS is asked over a plain socket: the first process that greets answers, and nobody who listens there can harm the agent."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable

import pytest
from tracer.ras.answers import TEXT_BEHIND, answer, communicator, rank

from robust_run.tracer.ras.types import RasReport
from robust_run.tracer.sight import ras as client
from robust_run.tracer.sight.ras import ask
from robust_run.tracer.sight.ras_port import RasPort

PATIENCE_S = 60.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
JSON = answer(communicator(rank(0), rank(1)))


async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, form: bytes = b"OK") -> bytes:
    """Take the greeting as NCCL does, and return the question."""
    assert (await reader.readline()).startswith(b"CLIENT PROTOCOL ")
    assert (await reader.readline()).startswith(b"TIMEOUT ")
    assert await reader.readline() == b"SET FORMAT json\n"
    writer.write(b"SERVER PROTOCOL 2\nOK\n" + form + b"\n")
    return await reader.readline()


def asked(*serve: Serve, limit_s: float = PATIENCE_S) -> tuple[RasReport | None, int]:
    """What comes of asking where connections are served so, in turn, and how many there were."""
    count = 0

    async def run() -> RasReport | None:
        async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            count += 1
            try:
                await serve[min(count, len(serve)) - 1](reader, writer)
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(each, "127.0.0.1", 0)
        async with server:
            return await ask(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", limit_s)

    return asyncio.run(run()), count


async def new_nccl(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    assert await told(reader, writer) == b"STATUS\n"
    writer.write(JSON)


async def old_nccl(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    assert await told(reader, writer, form=b"ERROR: Unknown command SET FORMAT json") == b"VERBOSE STATUS\n"
    writer.write(TEXT_BEHIND.encode())


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greeting is waited for, however busy this machine is."""
    monkeypatch.setattr(client, "GREETING_S", PATIENCE_S)


async def stopped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other side gives up


@pytest.mark.usefixtures("patience")
def test_new_versions_answer_in_json():
    report, _ = asked(new_nccl)
    assert report is not None
    assert (report.form, len(report.communicators)) == ("json", 1)


@pytest.mark.usefixtures("patience")
def test_old_versions_answer_in_text():
    report, _ = asked(old_nccl)
    assert report is not None
    assert (report.form, len(report.communicators)) == ("text", 1)


def test_a_stopped_process_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    async def last_stopped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        monkeypatch.setattr(client, "GREETING_S", PATIENCE_S)  # the next one greets, however busy this machine is
        await stopped(reader, writer)

    report, connections = asked(stopped, last_stopped, new_nccl)
    assert report is not None
    assert connections == 3


def test_where_all_are_stopped_it_gives_up():
    assert asked(stopped) == (None, client.TRIES)


def test_an_answer_that_does_not_end_is_given_up():
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await told(reader, writer)
        writer.write(JSON[:50])
        await reader.read()

    assert asked(endless, limit_s=1.0)[0] is None


def test_an_answer_without_measure_is_given_up():
    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await told(reader, writer)
        for _ in range(2 * client.ANSWER_BYTES >> 20):
            writer.write(b" " * (1 << 20))
            await writer.drain()

    assert asked(floods)[0] is None


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n\r\n", b"x" * 100_000, b"\n\n\n"])
def test_somebody_else_on_the_port_is_left_alone(greeting: bytes):
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()

    assert asked(other) == (None, 1)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:", ":5", "127.0.0.1:x", "127.0.0.1:99999999", "a b:1"])
def test_an_address_that_is_none_gives_nothing(address: str):
    assert asyncio.run(ask(address)) is None


def test_a_port_is_given_to_a_job_once_and_to_nobody_else():
    one, other = RasPort(), RasPort()
    try:
        assert one.address == ""
        assert one.variables({}) == one.variables({"X": "1"}) == {"NCCL_RAS_ADDR": one.address}
        assert other.variables({})["NCCL_RAS_ADDR"] != one.address
    finally:
        one.close()
        other.close()
    assert one.address == ""


@pytest.mark.parametrize("decided", [{"NCCL_RAS_ADDR": "0.0.0.0:1234"}, {"NCCL_RAS_ENABLE": "0"}])
def test_what_the_user_decided_about_ras_stays(decided: dict[str, str]):
    port = RasPort()
    assert port.variables(decided) == {}
    assert port.address == "", "nobody is asked"


def test_all_processes_of_a_job_can_listen_on_its_port_and_the_held_one_answers_nobody():
    port = RasPort()
    host, _, number = port.variables({})["NCCL_RAS_ADDR"].partition(":")
    listeners = []
    try:
        for _ in range(2):  # as NCCL does it
            listener = socket.socket()
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, int(number)))
            listener.listen()
            listener.setblocking(False)
        for _ in range(20):
            with socket.create_connection((host, int(number)), timeout=20) as asking:
                asking.sendall(b"x")
        accepted = 0
        while accepted < 20 and (ready := select.select(listeners, [], [], PATIENCE_S)[0]):
            ready[0].accept()[0].close()
            accepted += 1
        assert accepted == 20
    finally:
        for each in listeners:
            each.close()
        port.close()
