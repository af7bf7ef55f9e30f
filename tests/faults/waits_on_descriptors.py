"""Legitimate waits of rank 0 for pipes, sockets, locks of files and stores."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing.connection
import os
import select
import selectors
import socket
import sys
import threading
import time
import urllib.request
from datetime import timedelta

import torch.distributed as dist
from waits_ground import apart, first_line, python


def written_later(seconds: float) -> int:
    """Return the reading end of a pipe that a program of another session writes to after a time."""
    readable, writable = os.pipe()
    apart("sh", "-c", f"sleep {seconds}; echo done", stdout=writable)
    os.close(writable)
    return readable


def pipe_of_another_session(seconds: float) -> None:
    os.read(written_later(seconds), 1)


def pipe_that_is_closed(seconds: float) -> None:
    readable, writable = os.pipe()
    apart("sleep", str(seconds), pass_fds=[writable])
    os.close(writable)
    assert os.read(readable, 1) == b""


def hidden_end_of_a_pipe(seconds: float) -> None:
    """The only writer is in flight: nobody holds it in a table of descriptors until it is received."""
    readable, writable = os.pipe()
    here, there = socket.socketpair()
    socket.send_fds(here, [b"x"], [writable])
    os.close(writable)

    def receive() -> None:
        time.sleep(seconds)
        _, fds, _, _ = socket.recv_fds(there, 1, 1)
        os.write(fds[0], b"done")

    threading.Thread(target=receive, daemon=True).start()
    os.read(readable, 1)


def full_pipe(seconds: float) -> None:
    readable, writable = os.pipe()
    apart("sh", "-c", f"sleep {seconds}; cat >/dev/null", stdin=readable)
    os.close(readable)
    with open(writable, "wb") as file:
        file.write(bytes(1 << 20))


def fifo(seconds: float) -> None:
    os.mkfifo("fifo")
    apart("sh", "-c", f"exec >fifo; sleep {seconds}; echo done")
    with open("fifo") as file:
        file.read()


def epoll(seconds: float) -> None:
    with select.epoll() as watched:
        watched.register(written_later(seconds), select.EPOLLIN)
        watched.poll()


def selectors_without_a_limit(seconds: float) -> None:
    with selectors.DefaultSelector() as watched:
        watched.register(written_later(seconds), selectors.EVENT_READ)
        watched.select()


def eventfd(seconds: float) -> None:
    happened = os.eventfd(0)
    threading.Timer(seconds, lambda: os.eventfd_write(happened, 1)).start()
    os.eventfd_read(happened)


def event_of_asyncio(seconds: float) -> None:
    async def wait() -> None:
        happened = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Timer(seconds, lambda: loop.call_soon_threadsafe(happened.set)).start()
        await happened.wait()

    asyncio.run(wait())


def command_of_asyncio(seconds: float) -> None:
    async def wait() -> None:
        process = await asyncio.create_subprocess_exec("sleep", str(seconds))
        await process.wait()

    asyncio.run(wait())


# --- sockets


AFTER_A_TIME = "import socket, sys, time; time.sleep(float(sys.argv[1])); "


def accepts_later(seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = "socket.create_connection(('127.0.0.1', int(sys.argv[2])))"
        apart(sys.executable, "-c", AFTER_A_TIME + program, str(seconds), str(port))
        server.accept()


def datagram(seconds: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        program = "socket.socket(2, 2).sendto(b'x', ('127.0.0.1', int(sys.argv[2])))"
        apart(sys.executable, "-c", AFTER_A_TIME + program, str(seconds), str(receiver.getsockname()[1]))
        receiver.recv(1)


def unix_socket(seconds: float) -> None:
    listener = multiprocessing.connection.Listener("socket", "AF_UNIX")
    program = (
        "import multiprocessing.connection as c, sys, time; o = c.Client(sys.argv[1], 'AF_UNIX');"
        "time.sleep(float(sys.argv[2])); o.send(1)"
    )
    apart(sys.executable, "-c", program, "socket", str(seconds))
    with listener, listener.accept() as connection:
        connection.recv()


def timeouts_of_a_socket(seconds: float) -> None:
    here, there = socket.socketpair()
    apart("sh", "-c", f"sleep {seconds}; echo done", stdout=there)
    here.settimeout(3.0)
    while True:
        with contextlib.suppress(TimeoutError):
            here.recv(1)
            return


LONG_POLL = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(float(sys.argv[1]))
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"x")
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.handle_request()
"""


def long_poll(seconds: float) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{first_line(python(LONG_POLL, seconds))}/", timeout=600).read()


# --- locks of files


def lock_of_a_range(seconds: float) -> None:
    program = (
        "import fcntl, sys, time; f = open('range', 'w'); fcntl.lockf(f, 2); print('ok', flush=True)\n"
        "time.sleep(float(sys.argv[1]))"
    )
    assert first_line(python(program, seconds)) == "ok"
    with open("range", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)


def lock_that_a_dead_owner_left_to_its_child(seconds: float) -> None:
    """A flock survives a fork: the process that the kernel names as its owner has ended long ago."""
    program = (
        "import fcntl, os, sys, time; f = open('left', 'w'); fcntl.flock(f, 2); print('ok', flush=True)\n"
        "if os.fork() == 0: time.sleep(float(sys.argv[1]))"
    )
    owner = python(program, seconds)
    assert first_line(owner) == "ok"
    owner.wait()
    with open("left", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def folder_as_a_lock(seconds: float) -> None:
    os.mkdir("taken")
    apart("sh", "-c", f"sleep {seconds}; rmdir taken")
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir("taken")
            return
        time.sleep(2.0)


# --- stores


def key_of_a_store(seconds: float) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = dist.TCPStore("127.0.0.1", store.port, is_master=False)
    threading.Timer(seconds, lambda: other.set("ready", "1")).start()
    store.wait(["ready"], timedelta(seconds=600))


def file_of_a_store(seconds: float) -> None:
    store, other = dist.FileStore("store", 2), dist.FileStore("store", 2)
    threading.Timer(seconds, lambda: other.set("ready", "1")).start()
    store.wait(["ready"], timedelta(seconds=600))


WAITS = (
    pipe_of_another_session, pipe_that_is_closed, hidden_end_of_a_pipe, full_pipe, fifo, epoll, selectors_without_a_limit,
    eventfd, event_of_asyncio, command_of_asyncio,
    accepts_later, datagram, unix_socket, timeouts_of_a_socket, long_poll,
    lock_of_a_range, lock_that_a_dead_owner_left_to_its_child, folder_as_a_lock,
    key_of_a_store, file_of_a_store,
)  # fmt: skip
