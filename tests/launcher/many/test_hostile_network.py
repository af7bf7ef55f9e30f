"""Strangers, wrong agents and floods at the port of a job that trains: each ends in one clear line, and the job goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from authorities import node_options
from clusters import PATIENCE_S, PORT, TRAIN, ClusterJob, start_all, write
from host_process import HostProcess
from hosts import Cluster, Host, need_hosts
from jobs import wait_for

#: The lease is longer than usual: strangers keep the machine busy, which may hold an agent up for a second and more.
FAST = ("--no-warm", "--restart-grace", "0.3", "--rdzv-conf", "keep_alive_max_attempt=9")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three hosts that are on: two for the job, and a hostile one."""
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        yield cluster


def start(cluster: Cluster, tmp_path: Path, *options: str) -> ClusterJob:
    """Start a job on the first two hosts; it trains."""
    script = write(tmp_path, TRAIN)
    job = start_all(
        cluster,
        script,
        tmp_path=tmp_path,
        options=["--nnodes", "2", *FAST, *options],
        launch=[cluster[0], cluster[1]],
    )
    job.wait_for_steps(0, 2)
    return job


def odd_one(job: ClusterJob, host: Host, *options: str, env: dict[str, str] | None = None) -> HostProcess:
    """Start a launcher whose command line differs from the others' in these options."""
    argv = [sys.executable, "-m", "robust_run", *job.argv[:-1], *options, job.argv[-1]]
    return host.start(argv, env={**job.env, **(env or {})}, name="odd-one")


def only_line(process: HostProcess, code: int) -> str:
    """Return the one line with which a launcher must have ended."""
    assert process.wait(PATIENCE_S) == code, process.err
    lines = process.err.strip().splitlines()
    assert len(lines) == 1, process.err
    return lines[0]


def kill_rank(job: ClusterJob, attempt: int, rank: int) -> None:
    """SIGKILL a worker that trains."""
    worker = job.wait_for_steps(attempt, 2)[rank]
    host = next(host for host in job.hosts if host.name == worker.host)
    os.kill(host.pid_outside(worker.pid), signal.SIGKILL)


def assert_unharmed(job: ClusterJob, attempts: Sequence[int] = (0,)) -> None:
    """Fail unless the job trains on the two nodes it began with, in no more attempts than these, and ends well."""
    job.wait_for_more_steps(attempts[-1], 2)
    assert sorted({order["attempt"] for order in job.actions("start_attempt")}) == list(attempts)
    assert {worker.host for worker in job.workers()} == {"node-0", "node-1"}
    assert set(job.finish().values()) == {0}, job.said()
    job.assert_never_two_at_once()


def test_agents_that_do_not_belong_here_are_told_why(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    wrong = odd_one(job, three[2], env={"ROBUST_TOKEN": "another token, as long as it must be"})
    assert "the token of this agent differs from that of the controller at 10.77.0.10:29400" in only_line(wrong, 1)
    other = odd_one(job, three[2], "--rdzv-id", "other")
    assert "the same --rdzv-id" in only_line(other, 1)
    larger = odd_one(job, three[2], "--nnodes", "3")
    assert "--nnodes 3:3 on node-2 and 2:2 on the controller's node differ" in only_line(larger, 1)
    assert [event["node"]["name"] for event in job.events("node_joined")].count("node-2") == 0
    assert_unharmed(job)
    job.assert_nothing_left()


def test_the_same_node_rank_twice_is_refused(three: Cluster, tmp_path: Path) -> None:
    script = write(tmp_path, TRAIN)
    options = ["--nnodes", "2", "--standby", "1", "--rdzv-backend", "static", *FAST]
    job = start_all(three, script, tmp_path=tmp_path, options=options, launch=())
    for rank in (0, 1):
        job.join(three[rank], "--node-rank", str(rank))
    job.wait_for_steps(0, 2)
    second = odd_one(job, three[2], "--node-rank", "1")
    assert "--node-rank 1 is taken by node-1; give each node a rank of its own" in only_line(second, 1)
    assert_unharmed(job)
    job.assert_nothing_left()


OTHER_VERSION = """
import socket, sys
if sys.argv[1] == "agent":
    wire = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    wire.sendall(b"robust-run 3 9.9.9 and more\\n")
    heard = b""
    while data := wire.recv(4096):
        heard += data
    print(heard.decode())
else:
    door = socket.create_server((sys.argv[2], int(sys.argv[3])))
    print("up", flush=True)
    while True:
        wire, _ = door.accept()
        wire.sendall(b"robust-run 3 9.9.9 and more\\n")
"""


def test_peers_of_another_version_are_refused_in_words(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    agent = three[2].run([sys.executable, "-c", OTHER_VERSION, "agent", three[0].address, str(PORT)])
    assert "refused the agent at 10.77.0.12:" in agent.stdout
    assert "speaks protocol 3 (robust-run 9.9.9), this controller speaks protocol 2" in agent.stdout.replace(
        "speaks 2 ", "speaks protocol 2 "
    )
    fake = three[2].start([sys.executable, "-c", OTHER_VERSION, "controller", three[2].address, str(PORT)])
    wait_for(lambda: "up" in fake.out, "the fake controller", PATIENCE_S)
    ours = odd_one(job, three[1], "--rdzv-endpoint", f"{three[2].address}:{PORT}")
    line = only_line(ours, 1)
    assert f"the controller at {three[2].address}:{PORT} speaks protocol 3 (robust-run 9.9.9)" in line
    assert "install the same version on all nodes" in line
    fake.kill()
    assert_unharmed(job)
    job.assert_nothing_left()


STRANGERS = """
import http.client, os, socket, sys
where = (sys.argv[1], int(sys.argv[2]))
for garbage in (os.urandom(100_000), b"\\0" * 100_000, b"robust-run 2 0.1.0\\n" + b"\\xff" * 100_000):
    with socket.create_connection(where, timeout=40) as wire:
        try:
            wire.sendall(garbage)
            while wire.recv(65536):
                pass
        except ConnectionError:
            pass
connection = http.client.HTTPConnection(*where, timeout=40)
try:
    connection.request("GET", "/v1/status")
    print("HTTP", connection.getresponse().status)
except (http.client.HTTPException, ConnectionError) as error:
    print("no HTTP", type(error).__name__)
"""


def test_garbage_and_http_at_the_port_hurt_nobody(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    controller = job.on(three[0]).controller_pid()
    done = three[2].run([sys.executable, "-c", STRANGERS, three[0].address, str(PORT)])
    assert "no HTTP" in done.stdout
    noted = (job.run_dir / "controller.log").read_text()
    assert "turned away: the agent at 10.77.0.12:" in noted
    kill_rank(job, 0, 1)
    assert_unharmed(job, (0, 1))
    assert job.on(three[0]).controller_pids() in ([controller], [])
    assert "Traceback" not in job.said()
    job.assert_nothing_left()


SLOW_READER = """
import asyncio, os, sys
from robust_run.launcher.control.client import dial
from robust_run.launcher.control.messages import Heartbeat, Hello
from robust_run.launcher.model.job import NodeInfo

async def main():
    token = open(sys.argv[3]).read().strip().encode()
    hello = Hello(node=NodeInfo(id="0123456789abcdef", name="slow", nproc=1))
    connection = await dial(sys.argv[1], int(sys.argv[2]), token, hello, timeout_s=60.0)
    connection.listen(lambda message: None, lambda why: None)
    connection._transport.pause_reading()
    print("in", flush=True)
    for number in range(10**9):
        for more in range(500):
            connection.send(Heartbeat(number=1 + 500 * number + more))
        await asyncio.sleep(0.02)

asyncio.run(main())
"""


def test_an_agent_that_reads_nothing_holds_nobody_up(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    argv = [sys.executable, "-c", SLOW_READER, three[0].address, str(PORT), str(job.run_dir / "token")]
    slow = three[2].start(argv)
    wait_for(lambda: "in" in slow.out, f"it joins: {slow.err}", PATIENCE_S)
    job.wait_for_event("node_joined", 3)
    kill_rank(job, 0, 0)
    job.wait_for_steps(1, 2)
    assert slow.poll() is None, slow.err
    slow.kill()
    lost = job.wait_for_event("node_lost")
    assert [event["node"] for event in lost] == ["0123456789abcdef"]
    assert_unharmed(job, (0, 1))
    job.assert_nothing_left()


IN_BETWEEN = """
import os, socket, sys, threading
from robust_run.launcher.control import frames
from robust_run.launcher.control.messages import Orders
from robust_run.launcher.model.actions import EndAttempt

order = frames.encode(Orders(term=1, orders=(EndAttempt(attempt=0, signal=9, grace_s=0.0),)))
door = socket.create_server((sys.argv[1], int(sys.argv[3])))
print("up", flush=True)

def carry(one, other, forge):
    try:
        while data := one.recv(65536):
            if forge and os.path.exists(sys.argv[4]):
                forge = False
                other.sendall(order)
                print("forged", flush=True)
            other.sendall(data)
    except OSError:
        pass
    for each in (one, other):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

first = True
while True:
    agent, _ = door.accept()
    try:
        controller = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    except OSError:
        agent.close()  # the agent was faster than its controller: it dials again
        continue
    threading.Thread(target=carry, args=(agent, controller, False), daemon=True).start()
    threading.Thread(target=carry, args=(controller, agent, first), daemon=True).start()
    first = False
"""


def test_an_order_put_in_by_somebody_between_agent_and_controller_is_not_obeyed(three: Cluster, tmp_path: Path) -> None:
    now = tmp_path / "forge-now"
    where = [three[2].address, three[0].address, str(PORT), str(now)]
    between = three[2].start([sys.executable, "-c", IN_BETWEEN, *where])
    wait_for(lambda: "up" in between.out, f"the relay: {between.err}", PATIENCE_S)
    script = write(tmp_path, TRAIN)
    job = start_all(three, script, tmp_path=tmp_path, options=["--nnodes", "2", *FAST], launch=[three[0]])
    straight = job.argv
    job.argv = [word.replace(f"{three[0].address}:{PORT}", f"{three[2].address}:{PORT}") for word in straight]
    job.join(three[1])
    job.argv = straight
    workers = job.wait_for_steps(0, 2)
    now.touch()
    wait_for(lambda: "forged" in between.out, "the relay forges an order", PATIENCE_S)
    job.wait_for_event("node_returned")
    assert "is not what the other end sent" in job.said()
    job.wait_for_more_steps(0, 2)
    assert {(worker.host, worker.pid) for worker in job.workers()} == {(worker.host, worker.pid) for worker in workers}
    assert_unharmed(job)
    between.kill()
    job.assert_nothing_left()


FLOOD = """
import errno, resource, select, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
poll, held, opened, full = select.poll(), {}, 0, False
while True:
    while len(held) < 1000:
        wire = socket.socket()
        wire.setblocking(False)
        if wire.connect_ex((sys.argv[1], int(sys.argv[2]))) not in (0, errno.EINPROGRESS):
            wire.close()
            break
        held[wire.fileno()] = wire
        poll.register(wire, select.POLLIN | select.POLLOUT)
    for number, events in poll.poll(10):
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            poll.unregister(number)
            held.pop(number).close()
        elif events & select.POLLOUT:
            opened += 1
            held[number].send(b"robust")
            poll.modify(number, select.POLLIN)
    if opened >= 1000 and not full:
        full = True
        print("full", flush=True)
"""


def test_a_thousand_connections_that_say_nothing_keep_no_agent_out(three: Cluster, tmp_path: Path) -> None:
    script = write(tmp_path, TRAIN)
    flood = three[2].start([sys.executable, "-c", FLOOD, three[0].address, str(PORT)])
    job = start_all(three, script, tmp_path=tmp_path, options=["--nnodes", "2", *FAST], launch=[three[0]])
    wait_for(lambda: "full" in flood.out, f"the flood: {flood.err}", PATIENCE_S)
    job.join(three[1])
    job.wait_for_steps(0, 2)
    kill_rank(job, 0, 1)
    job.wait_for_steps(1, 2)
    assert flood.poll() is None, flood.err
    assert_unharmed(job, (0, 1))
    flood.kill()
    job.assert_nothing_left()


def test_with_tls_only_nodes_with_a_certificate_get_in(three: Cluster, tmp_path: Path) -> None:
    files = node_options(tmp_path)
    job = start(three, tmp_path, *files)
    at = job.argv.index("--tls-cert")
    bare = [sys.executable, "-m", "robust_run", *job.argv[:at], *job.argv[at + 6 : -1]]
    brief = ("--rdzv-conf", "is_host=0,join_timeout=2.5")
    plain = three[2].start([*bare, *brief, job.argv[-1]], env=job.env)
    no_certificate = three[2].start([*bare, *brief, *files[4:], job.argv[-1]], env=job.env)
    assert (plain.wait(PATIENCE_S), no_certificate.wait(PATIENCE_S)) == (1, 1)
    assert "if its controller has --tls-cert, this agent needs the same" in plain.err.splitlines()[-1]
    assert "--tls-cert and --tls-key of" in no_certificate.err.splitlines()[-1]
    os.kill(job.on(three[0]).controller_pid(), signal.SIGKILL)
    job.wait_for_event("node_returned", 2)
    kill_rank(job, 0, 1)
    assert_unharmed(job, (0, 1))
    job.assert_nothing_left()
