"""Hosts on one machine (hosts.py) behave as machines do: names, cables, power, clocks; and nothing of them is left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import host_ground as ground
import pytest
from host_process import HostProcess
from hosts import Cluster, Host, need_hosts
from jobs import script, wait_for

from robust_run.ckpt_io.mount import manage
from robust_run.ckpt_io.mount.types import MountOptions

SERVE = """
    import socket
    server = socket.create_server(("0.0.0.0", 5000))
    print("ready", flush=True)
    peer, _ = server.accept()
    while data := peer.recv(100):
        peer.sendall(data)
"""
TALK = """
    import socket, sys, time
    peer = socket.create_connection((sys.argv[1], 5000), timeout=10)
    peer.settimeout(None)
    try:
        while True:
            peer.sendall(b"x")
            print("echo" if peer.recv(1) else "end of file", flush=True)
            time.sleep(0.01)
    except OSError as error:
        print("error", error, flush=True)
"""
CONNECT = """
    import socket, sys
    try:
        socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))
        print("connected")
    except OSError as error:
        print(error)
"""


@pytest.fixture(autouse=True)
def hosts_here() -> None:
    need_hosts()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(text), *arguments]


def talking(server: Host, client: Host) -> HostProcess:
    """Open a connection over which the client sends and hears an echo, for ever; return the client."""
    serving = server.start(python(SERVE))
    wait_for(serving.lines, "the server to listen")
    process = client.start(python(TALK, server.name))
    wait_for(process.lines, "the first echo")
    return process


def goes_on(process: HostProcess) -> None:
    """Wait for more echoes."""
    so_far = len(process.lines())
    wait_for(lambda: len(process.lines()) > so_far + 3, f"more than {so_far} echoes")


def sends_into_the_void(client: Host) -> None:
    """Wait until the client's kernel has sent the same thing again and again and still holds the connection open."""

    def retransmits() -> int:
        rows = [line.split() for line in client.run(["cat", "/proc/net/tcp"]).stdout.splitlines()[1:]]
        return max((int(row[6], 16) for row in rows if row[2].endswith(":1388") and row[3] == "01"), default=0)

    wait_for(lambda: retransmits() >= 2, "two retransmissions on an established connection")


def test_a_host_has_a_name_an_address_and_a_network_card_of_its_own(pair: Cluster) -> None:
    assert pair[1].run(["uname", "-n"]).stdout == "node-1\n"
    found = pair[0].run(python("import socket; print(socket.gethostbyname(socket.gethostname()))")).stdout
    assert found == f"{pair[0].address}\n"
    assert pair[0].run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]


def test_hosts_reach_each_other_by_name(pair: Cluster) -> None:
    goes_on(talking(pair[0], pair[1]))


def test_hosts_share_files_but_not_memory_run_or_local_disk(pair: Cluster, tmp_path: Path) -> None:
    pair[0].run(["touch", str(tmp_path / "shared"), "/dev/shm/mine", "/run/mine", "/run/tmp/mine"])
    listing = ["ls", str(tmp_path / "shared"), "/dev/shm", "/run", "/run/tmp"]
    assert "mine" in pair[0].run(listing).stdout
    assert "mine" not in pair[1].run(listing).stdout
    assert (pair[0].root / "dev/shm/mine").exists()
    assert not Path("/dev/shm/mine").exists()
    assert pair[0].private != pair[1].private
    assert pair[0].run(["sh", "-c", "echo $TMPDIR"]).stdout == "/run/tmp\n"


def test_a_process_is_known_by_its_pid_here_and_there(pair: Cluster) -> None:
    process = pair[0].start(python("import os, time; print(os.getpid(), flush=True); time.sleep(1000)"))
    (line,) = wait_for(process.lines, "its pid")
    assert pair[0].pid_outside(int(line)) == process.pid
    assert pair[0].pids() == [process.pid]
    assert pair[1].pids() == []
    process.signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    with pytest.raises(LookupError):
        pair[0].pid_outside(int(line))


def test_exit_codes_and_output_are_those_of_the_program(pair: Cluster) -> None:
    done = pair[0].run(["sh", "-c", "echo out; echo err >&2; exit 7"], check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    with pytest.raises(AssertionError, match="node-0 ended with 127: no-such-program"):
        pair[0].run(["no-such-program"])
    with pytest.raises(subprocess.TimeoutExpired):
        pair[0].run(["sleep", "1000"], timeout_s=0.1)
    wait_for(lambda: not pair[0].pids(), "the command that took too long to be gone")


def test_orphans_are_reaped(pair: Cluster) -> None:
    pair[0].run(["sh", "-c", "sh -c 'exit 3' & sh -c 'sleep 0.1' &"])
    listing = "import os; print(len([entry for entry in os.listdir('/proc') if entry.isdigit()]))"
    wait_for(lambda: pair[0].run(python(listing)).stdout == "2\n", "only process 1 and the one that looks")


def test_a_cut_cable_is_silence_and_connections_survive_it(pair: Cluster) -> None:
    client = talking(pair[0], pair[1])
    pair[0].cut()
    sends_into_the_void(pair[1])
    for here, there in ((0, 1), (1, 0)):
        assert pair[here].run(python(CONNECT, pair[there].name, "0.5")).stdout == "timed out\n"
    pair[0].heal()
    goes_on(client)
    assert set(client.lines()) == {"echo"}


def test_a_cut_cable_stays_cut_over_a_reboot(pair: Cluster) -> None:
    pair[0].cut()
    pair[0].reboot()
    assert pair[1].run(python(CONNECT, pair[0].name, "0.3")).stdout == "timed out\n"
    pair[0].heal()
    assert "refused" in pair[1].run(python(CONNECT, pair[0].name, "10")).stdout


def test_two_hosts_can_be_cut_from_each_other_alone(tmp_path: Path) -> None:
    with Cluster(3, tmp_path) as cluster:
        client = talking(cluster[0], cluster[1])
        cluster[0].cut_from(cluster[1])
        sends_into_the_void(cluster[1])
        assert "refused" in cluster[2].run(python(CONNECT, "node-1", "10")).stdout
        cluster[1].heal()
        goes_on(client)


def test_one_direction_can_be_cut_alone(pair: Cluster) -> None:
    datagrams = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); "
    hear = (
        datagrams + "s.bind(('', 7)); print('ready', flush=True); [print(s.recv(9).decode(), flush=True) for _ in 'ab']"
    )
    send = datagrams + "s.sendto(b'{}', ('{}', 7))"
    ears = [host.start(python(hear)) for host in pair]
    for ear in ears:
        wait_for(ear.lines, "a bound socket")
    pair[0].cut_from(pair[1], one_way=True)
    pair[0].run(python(send.format("lost", "node-1")))
    pair[1].run(python(send.format("found", "node-0")))
    wait_for(lambda: len(ears[0].lines()) == 2, "the datagram of the open direction")
    pair[0].heal()
    pair[0].run(python(send.format("healed", "node-1")))
    wait_for(lambda: len(ears[1].lines()) == 2, "the first datagram after healing")
    assert [ear.lines()[1] for ear in ears] == ["found", "healed"]


def test_power_loss_kills_everything_and_nobody_hears_of_it(pair: Cluster) -> None:
    client = talking(pair[0], pair[1])
    pair[0].start(["sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & wait"])
    victims = wait_for(lambda: len(pair[0].pids()) == 4 and pair[0].pids(), "the processes of the host")
    served = pair[0].start(["sleep", "1000"])
    pair[0].power_off()
    assert not [pid for pid in [*victims, served.pid] if Path(f"/proc/{pid}").exists()]
    assert served.poll() == -signal.SIGKILL
    sends_into_the_void(pair[1])
    assert set(client.lines()) == {"echo"}
    assert client.poll() is None
    with pytest.raises(AssertionError, match="node-0 is off"):
        pair[0].start(["true"])


def test_a_host_comes_back_with_its_name_address_and_disk_only(pair: Cluster) -> None:
    (pair[0].private / "disk").touch()
    pair[0].run(["touch", "/run/tmp/memory"])
    client = talking(pair[0], pair[1])
    pair[0].reboot()
    assert pair[0].run(["uname", "-n"]).stdout == "node-0\n"
    assert pair[0].run(["ls", "/run/tmp", str(pair[0].private)]).stdout.split() == [
        "/run/tmp:",
        f"{pair[0].private}:",
        "disk",
    ]
    wait_for(lambda: client.lines()[-1] != "echo", "the old connection to be refused by the new kernel")
    assert "error [Errno 104]" in client.lines()[-1]
    goes_on(talking(pair[0], pair[1]))


@pytest.mark.parametrize("way", ["cgroup", "signals"])
def test_a_frozen_host_stands_still_and_goes_on(pair: Cluster, way: str) -> None:
    if way == "signals":
        pair[0].cgroup = None
    elif pair[0].cgroup is None:
        pytest.skip("no cgroups of the second version that we may make")
    stopped = pair[0].start(["sh", "-c", "kill -STOP $$; echo woken"])
    wait_for(lambda: process_state(stopped.pid) == "T", "a process that stopped itself")
    client = talking(pair[0], pair[1])
    pair[0].freeze()
    so_far = len(client.lines())
    assert pair[1].run(python(CONNECT, "node-0", "10")).stdout == "connected\n"  # the kernel accepts for it
    assert len(client.lines()) <= so_far + 1
    pair[0].thaw()
    goes_on(client)
    assert process_state(stopped.pid) == "T"
    pair[0].freeze()
    pair[0].reboot()
    assert pair[0].run(["echo", "up"]).stdout == "up\n"


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_clocks_of_one_host_can_be_an_hour_ahead_or_behind(tmp_path: Path) -> None:
    clocks = python("import time; print(time.monotonic(), time.time())")
    with Cluster(3, tmp_path, skew_s={1: 3600, 2: -60}) as cluster:
        if cluster[1].skew == "none":
            pytest.skip("neither time namespaces nor libfaketime here")
        seen = [[float(word) for word in host.run(clocks).stdout.split()] for host in cluster]
        assert cluster[0].skew == "none"
        for host, seconds in ((1, 3600), (2, -60)):
            for number, clock in enumerate(("monotonic", "wall")):
                expected = seconds if clock in cluster[host].skew else 0
                assert seen[host][number] - seen[0][number] == pytest.approx(expected, abs=30), clock
        cluster[1].reboot()
        again = float(cluster[1].run(clocks).stdout.split()[0])
        assert again >= seen[1][0]


#: Where a host mounts something of its own when it boots.
MOUNTED = {"/etc/hosts", "/dev/shm", "/run", "/run/cgroup", "/sys", "/sys/fs/cgroup", "/proc"}


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests make hosts and mounts at the same time, and numbers of namespaces are used again: only ours count."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("HOSTS_TEST", mark)

    def networks() -> str:
        return re.sub(r":.*", "", Path("/proc/net/dev").read_text())

    def mounts() -> list[str]:
        places = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
        return [place for place in places if place in MOUNTED or place.startswith(str(tmp_path))]

    before, open_before = (networks(), mounts()), descriptors()
    for error in (None, ValueError, KeyboardInterrupt):
        try:
            with Cluster(2, tmp_path) as cluster:
                process = cluster[0].start(["sleep", "1000"])
                cluster[1].start(["sh", "-c", "setsid sleep 1000 & exec setsid sleep 1000"])
                cluster[1].freeze()
                assert len(namespaces(process.pid) - namespaces(os.getpid())) >= 5
                wait_for(partial(is_marked, str(process.pid), mark), "its environment")  # empty while it is exec'd
                if error:
                    raise error
        except (ValueError, KeyboardInterrupt) as raised:
            assert type(raised) is error
        assert process.poll() == -signal.SIGKILL
        assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and is_marked(pid, mark)]
        assert not cgroups(cluster.mark)
    assert (networks(), mounts()) == before
    assert not descriptors() - open_before


def namespaces(pid: int) -> set[str]:
    """Return the names of a process's namespaces."""
    try:
        folder = Path(f"/proc/{pid}/ns")
        return {os.readlink(folder / name) for name in os.listdir(folder) if "children" not in name}
    except OSError:
        return set()


def is_marked(pid: str, mark: str) -> bool:
    """Whether a process runs that our test has started."""
    try:
        return f"HOSTS_TEST={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def descriptors() -> set[tuple[str, str]]:
    """Return what this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the folder itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def cgroups(mark: str) -> list[Path]:
    home = ground._cgroup_home()
    return list(home.glob(f"{mark}*")) if home else []


def test_hosts_die_with_a_killed_harness_and_the_next_one_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a mark of its own: clusters of other tests sweep, too."""
    own = f"robust-swept-{uuid.uuid4().hex[:12]}-"
    text = """
        import sys, os, time
        sys.path.insert(0, sys.argv[1])
        from pathlib import Path
        import host_ground
        from hosts import Cluster
        host_ground.MARK = sys.argv[2]
        with Cluster(2, Path.cwd()) as cluster:
            process = cluster[0].start(["sleep", "1000"])
            if os.fork() == 0:  # holds the switch's socket, so that it does not end by itself
                time.sleep(1000)
            print(cluster.mark, process.pid, flush=True)
            time.sleep(1000)
    """
    argv = [sys.executable, script(tmp_path, text), str(Path(__file__).parent), own]
    harness = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True)
    with harness:
        assert harness.stdout
        mark, _, pid = harness.stdout.readline().partition(" ")
        harness.kill()
    try:
        assert Path(f"/proc/{int(pid)}").exists()
        monkeypatch.setattr(ground, "MARK", own)
        with Cluster(1, tmp_path):
            wait_for(lambda: not Path(f"/proc/{int(pid)}").exists(), "the orphaned host's process to be gone")
        assert not cgroups(mark)
    finally:
        os.killpg(harness.pid, signal.SIGKILL)  # the fork


def test_hosts_die_with_a_killed_harness_by_themselves(tmp_path: Path) -> None:
    text = """
        import sys, time
        sys.path.insert(0, sys.argv[1])
        from pathlib import Path
        from hosts import Cluster
        with Cluster(1, Path.cwd()) as cluster:
            print(cluster[0].start(["sleep", "1000"]).pid, flush=True)
            time.sleep(1000)
    """
    argv = [sys.executable, script(tmp_path, text), str(Path(__file__).parent)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as harness:
        assert harness.stdout
        pid = int(harness.stdout.readline())
        harness.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the host's process to be gone")


def test_two_clusters_do_not_see_each_other(tmp_path: Path) -> None:
    with Cluster(2, tmp_path) as one, Cluster(2, tmp_path) as other:
        serving = one[0].start(python(SERVE))
        wait_for(serving.lines, "the server to listen")
        assert "refused" in other[1].run(python(CONNECT, "node-0", "10")).stdout
        assert one[1].run(python(CONNECT, "node-0", "10")).stdout == "connected\n"


def test_what_others_mount_does_not_live_on_in_hosts(tmp_path: Path) -> None:
    """Whose checkpoints are unmounted waits for the process that serves them to end."""
    if not os.path.exists("/dev/fuse") or shutil.which("fusermount3") is None:
        pytest.skip("checkpoints are mounted with FUSE")
    (tmp_path / "saved").mkdir()
    point = str(tmp_path / "mounted")
    mounted = manage.mount(MountOptions(url=str(tmp_path / "saved"), point=point), lambda _: None)
    try:
        with Cluster(1, tmp_path) as cluster:
            assert "fuse.rrck" in Path("/proc/mounts").read_text()
            assert "fuse.rrck" not in cluster[0].run(["cat", "/proc/mounts"]).stdout
            manage.stop(point)
            assert mounted.process.wait(200) == 0
    finally:
        mounted.close()


def test_a_host_that_cannot_boot_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    cluster = Cluster(1, tmp_path, skew_s={0: -(10**12)})
    if not Path("/proc/self/ns/time").exists():
        pytest.skip("no time namespaces here")
    with pytest.raises(AssertionError, match="node-0 did not come up: unshare"), cluster:
        pass
    assert not cgroups(cluster.mark)


def test_robust_run_on_a_host(pair: Cluster, tmp_path: Path) -> None:
    train = script(tmp_path, "import os, socket; print(socket.gethostname(), os.environ['RANK'], flush=True)")
    job = pair[1].job(
        "hosted", tmp_path / "runs", "--no-warm", "--nproc-per-node", "2", "--no-python", sys.executable, train
    )
    assert job.finish() == 0, job.err
    assert "node-1 0" in job.out
    job.assert_nothing_left()


def test_gloo_runs_between_hosts(pair: Cluster, tmp_path: Path) -> None:
    train = script(
        tmp_path,
        """
        import statistics, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        taken = []
        for _ in range(200):
            value = torch.ones(1024) * (dist.get_rank() + 1)
            started = time.perf_counter()
            dist.all_reduce(value)
            taken.append(time.perf_counter() - started)
        assert value.eq(3).all()
        print(f"all_reduce of 4 KiB: {statistics.median(taken) * 1e6:.0f} us", flush=True)
        dist.destroy_process_group()
        """,
    )
    env = {"MASTER_ADDR": "node-0", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "eth0"}
    workers = [host.start([sys.executable, train], env={**env, "RANK": str(rank)}) for rank, host in enumerate(pair)]
    for worker in workers:
        assert worker.wait(120) == 0, worker.err
    assert "all_reduce of 4 KiB" in workers[0].out
    print(workers[0].out)
