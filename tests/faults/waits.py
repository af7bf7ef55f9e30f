"""Legitimate waits of rank 0 that a healthy job gets through: `robust-run --nproc-per-node 2 waits.py WAIT SECONDS`.

Two ranks train, rank 0 waits or works for so long while rank 1 waits for it in a collective, then both train on. From outside
a wait looks like a hang. `WAITS` names all of them, `test_waits.py` is the test. Runs in an empty folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import multiprocessing
import os
import pdb
import queue
import select
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
import waits_on_descriptors
import waits_on_others
from torch.utils.data import DataLoader, Dataset, IterableDataset
from waits_ground import apart, first_line, python, until

STEPS = 40


# --- asleep, polling


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def poll_file(seconds: float) -> None:
    apart("sh", "-c", f"sleep {seconds}; touch arrived")
    while not os.path.exists("arrived"):
        time.sleep(1.0)


def poll_seldom(seconds: float) -> None:
    goes_on = until(seconds)
    while goes_on():
        time.sleep(5.0)


def back_off(seconds: float) -> None:
    from tenacity import Retrying, retry_if_exception_type, wait_exponential

    goes_on = until(seconds)
    for attempt in Retrying(retry=retry_if_exception_type(FileNotFoundError), wait=wait_exponential(max=16)):
        with attempt:
            if goes_on():
                os.stat("never there")


def in_asyncio(seconds: float) -> None:
    asyncio.run(asyncio.sleep(seconds))


def in_select(seconds: float) -> None:
    readable, _writable = os.pipe()
    select.select([readable], [], [], seconds)


def monitored(seconds: float) -> None:
    time.sleep(seconds)


def steps_that_slow_down(seconds: float) -> None:
    time.sleep(seconds)


# --- threads


def thread_pool(seconds: float) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(time.sleep, [seconds, seconds]))


def event(seconds: float) -> None:
    ready = threading.Event()
    threading.Timer(seconds, ready.set).start()
    ready.wait()


def empty_queue(seconds: float) -> None:
    items: queue.Queue[int] = queue.Queue()
    threading.Timer(seconds, items.put, (1,)).start()
    items.get()


# --- children


def command(seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


def shell(seconds: float) -> None:
    os.system(f"sleep {seconds}")


def pool(seconds: float) -> None:
    with multiprocessing.get_context("fork").Pool(1) as workers:
        workers.map(time.sleep, [seconds])


def answer_of_a_child(seconds: float) -> None:
    """As a tracking service's client waits for its service."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        time.sleep(seconds)
        theirs.send(b"x")
        os._exit(0)
    ours.recv(1)
    os.wait()


class Slow(Dataset[torch.Tensor]):
    """Two samples that take long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 2

    def __getitem__(self, _: int) -> torch.Tensor:
        time.sleep(self.seconds / 2)
        return torch.zeros(3)


class Stream(IterableDataset[torch.Tensor]):
    """A stream that takes long to begin."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait = wait

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.wait()
        yield torch.zeros(3)


def first_batch(seconds: float) -> None:
    next(iter(DataLoader(Stream(lambda: time.sleep(seconds)), num_workers=1)))


def batches_without_workers(seconds: float) -> None:
    for _ in DataLoader(Slow(seconds), num_workers=0):
        pass


# --- services

SERVER = """
import http.server, sys, time
mode, seconds, begun = sys.argv[1], float(sys.argv[2]), time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if mode == "busy" and time.monotonic() - begun < seconds:
            self.send_response(503)
            self.end_headers()
            return
        if mode == "slow":
            time.sleep(seconds)
        self.send_response(200)
        self.end_headers()
        while mode == "trickle" and time.monotonic() - begun < seconds:
            self.wfile.write(bytes(1000))
            self.wfile.flush()
            time.sleep(4)
        self.wfile.write(b"x")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.timeout = 1
print(server.server_port, flush=True)
while time.monotonic() - begun < 3 * seconds + 60:
    server.handle_request()
"""


def service(mode: str, seconds: float) -> str:
    """Start a service and return its URL."""
    return f"http://127.0.0.1:{first_line(python(SERVER, mode, seconds))}/"


def fetch(url: str) -> None:
    with urllib.request.urlopen(url) as reply:
        reply.read()


def slow_answer(seconds: float) -> None:
    fetch(service("slow", seconds))


def slow_download(seconds: float) -> None:
    fetch(service("trickle", seconds))


def curl(seconds: float) -> None:
    subprocess.run(["curl", "-s", service("slow", seconds)], check=True)


def batch_from_a_service(seconds: float) -> None:
    url = service("slow", seconds)
    next(iter(DataLoader(Stream(lambda: fetch(url)), num_workers=1)))


def download_in_a_thread(seconds: float) -> None:
    worker = threading.Thread(target=fetch, args=(service("slow", seconds),))
    worker.start()
    worker.join()


def retries_of_urllib3(seconds: float) -> None:
    import urllib3

    retry = urllib3.Retry(12, backoff_factor=1, status_forcelist=[503])
    urllib3.PoolManager(retries=retry).request("GET", service("busy", seconds))


def retries_of_a_hub(seconds: float) -> None:
    from huggingface_hub.utils import http_backoff

    http_backoff("GET", service("busy", seconds), max_retries=12 + int(seconds), base_wait_time=1, max_wait_time=8)


def socket_that_trickles(seconds: float) -> None:
    """A raw socket at some 40 kB/s."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        goes_on = until(seconds)
        while goes_on():
            theirs.sendall(bytes(4000))
            time.sleep(0.1)
        theirs.close()

    threading.Thread(target=send).start()
    while ours.recv(65536):
        pass


# --- files and locks

LOCKER = """
import contextlib, fcntl, sys, time
kind, path, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with contextlib.ExitStack() as stack:
    if kind == "filelock":
        from filelock import FileLock
        stack.enter_context(FileLock(path))
    elif kind == "sqlite":
        import sqlite3
        base = sqlite3.connect(path, isolation_level=None)
        base.execute("create table t (x)")
        base.execute("begin exclusive")
        stack.callback(base.execute, "commit")
    else:
        file = stack.enter_context(open(path, "w"))
        fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    time.sleep(seconds)
"""


def locked_by(kind: str, path: str, seconds: float) -> None:
    assert first_line(python(LOCKER, kind, path, seconds)) == "locked"


def flock(seconds: float) -> None:
    locked_by("flock", "lock", seconds)
    with open("lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def file_lock(seconds: float) -> None:
    from filelock import FileLock

    locked_by("filelock", "lock", seconds)
    with FileLock("lock"):
        pass


def sqlite(seconds: float) -> None:
    locked_by("sqlite", "base", seconds)
    base = sqlite3.connect("base", timeout=600)
    base.execute("insert into t values (1)")
    base.commit()


def save_to_a_slow_place(seconds: float) -> None:
    """A pipe whose reader begins late, as a network file system may."""
    os.mkfifo("fifo")
    apart("sh", "-c", f"exec <fifo; sleep {seconds}; cat >/dev/null")
    with open("fifo", "wb") as file:
        torch.save({"a": torch.randn(400_000)}, file)


def open_a_fifo(seconds: float) -> None:
    os.mkfifo("fifo")
    apart("sh", "-c", f"sleep {seconds}; cat <fifo >/dev/null")
    with open("fifo", "wb") as file:
        file.write(bytes(1000))


def small_appends(seconds: float) -> None:
    goes_on = until(seconds)
    with open("log", "ab") as file:
        while goes_on():
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.5)


# --- work


def linear_algebra(seconds: float) -> None:
    import numpy as np

    goes_on = until(seconds)
    while goes_on():
        np.linalg.svd(np.random.rand(600, 600))


def one_long_call(_: float) -> None:
    import numpy as np

    np.linalg.eig(np.random.rand(1500, 1500))


def embedding(_: float) -> None:
    import numpy as np
    from sklearn.manifold import TSNE

    TSNE(max_iter=600).fit_transform(np.random.rand(2000, 50))


def python_loop(seconds: float) -> None:
    goes_on = until(seconds)
    while goes_on():
        pass


def compiling(_: float) -> None:
    model = torch.nn.TransformerEncoderLayer(64, 4)
    torch.compile(model)(torch.randn(4, 8, 64))


def garbage(seconds: float) -> None:
    goes_on = until(seconds)
    kept = [[number] for number in range(2_000_000)]
    while goes_on():
        gc.collect()
    del kept


def preparing_data(seconds: float) -> None:
    from datasets import Dataset as Table

    def work(row: dict[str, int]) -> dict[str, int]:
        goes_on = until(seconds / 200)
        while goes_on():
            pass
        return row

    Table.from_dict({"x": list(range(400))}).map(work, num_proc=2)


# --- people


TYPIST = "import os, sys, time; time.sleep(float(sys.argv[1])); os.write(int(sys.argv[2]), sys.argv[3].encode())"


def typed(text: str, seconds: float) -> int:
    """Return a descriptor on which somebody types a line after a time."""
    readable, writable = os.pipe()
    apart(sys.executable, "-c", TYPIST, str(seconds), str(writable), f"{text}\n", pass_fds=[writable])
    return readable


def debugger(seconds: float) -> None:
    pdb.Pdb(stdin=os.fdopen(typed("c", seconds)), stdout=sys.stdout).set_trace()
    time.sleep(0)  # here it stops


def answer_of_a_person(seconds: float) -> None:
    os.dup2(typed("yes", seconds), 0)
    input("go on? ")


def attached(seconds: float) -> None:
    apart("gdb", "-p", str(os.getpid()), "-batch", "-ex", f"shell sleep {seconds}", "-ex", "detach")
    time.sleep(seconds + 2.0)


WAITS: dict[str, Callable[[float], None]] = {
    wait.__name__: wait
    for wait in (
        sleep, poll_file, poll_seldom, back_off, in_asyncio, in_select, monitored, steps_that_slow_down,
        thread_pool, event, empty_queue,
        command, shell, pool, answer_of_a_child, first_batch, batches_without_workers,
        slow_answer, slow_download, curl, batch_from_a_service, download_in_a_thread, retries_of_urllib3,
        retries_of_a_hub, socket_that_trickles,
        flock, file_lock, sqlite, save_to_a_slow_place, open_a_fifo, small_appends,
        linear_algebra, one_long_call, embedding, python_loop, compiling, garbage, preparing_data,
        debugger, answer_of_a_person, attached,
        *waits_on_others.WAITS, *waits_on_descriptors.WAITS,
    )
}  # fmt: skip


def train(steps: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, pause_s: float = 0.02) -> None:
    """Make some steps."""
    for _ in range(steps):
        model(torch.randn(8, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause_s)


def main() -> None:
    """Train, wait, train."""
    name, seconds = sys.argv[1], float(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(STEPS, model, optimizer)
    if name == "steps_that_slow_down":
        train(4, model, optimizer, pause_s=1.5)
    begun_s = time.monotonic()
    if rank == 0:
        WAITS[name](seconds)
    if name == "monitored":
        dist.monitored_barrier(timeout=timedelta(seconds=3 * seconds + 60))
    else:
        dist.barrier()
    train(STEPS // 2, model, optimizer)
    dist.destroy_process_group()
    print(f"OK {rank} {time.monotonic() - begun_s:.1f}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
