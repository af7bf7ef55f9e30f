"""A worker's connection with TLS: threads send while another reads, and nothing is lost or mixed."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from authorities import Authority, need_openssl

from robust_run.roles.hidden import hidden
from robust_run.tls import server_context

STUCK_S = 60.0
THREADS, MESSAGES = 4, 50


def echo(listener: socket.socket, context: ssl.SSLContext, failed: list[BaseException]) -> None:
    try:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)
    except (OSError, AssertionError) as error:
        failed.append(error)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    need_openssl()
    return Authority(tmp_path, "job").signed("node")


def test_threads_send_while_another_reads(files: tuple[str, str, str]) -> None:
    context = server_context(*files)
    assert context is not None
    failed: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=echo, args=(listener, context, failed), daemon=True)
        server.start()
        connection = hidden(socket.create_connection(listener.getsockname(), STUCK_S), *files)
        expected = sum(MESSAGES * (1000 + number) * 7 for number in range(THREADS))

        def send(number: int) -> None:
            for _ in range(MESSAGES):
                connection.sendall(bytes([number]) * (1000 + number) * 7)

        senders = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
        for sender in senders:
            sender.start()
        got = b""
        while len(got) < expected:
            data = connection.recv(1 << 18)
            assert data
            got += data
        for sender in senders:
            sender.join(STUCK_S)
        counts = [got.count(bytes([number])) for number in range(THREADS)]
        assert counts == [MESSAGES * (1000 + number) * 7 for number in range(THREADS)]
        connection.close()
        server.join(STUCK_S)


def test_a_certificate_of_another_authority_is_not_spoken_to(files: tuple[str, str, str], tmp_path: Path) -> None:
    context = server_context(*Authority(tmp_path, "other").signed("node"))
    assert context is not None
    failed: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=echo, args=(listener, context, failed), daemon=True)
        server.start()
        with pytest.raises(ssl.SSLError), socket.create_connection(listener.getsockname(), STUCK_S) as plain:
            hidden(plain, *files)
        server.join(STUCK_S)
    assert failed
