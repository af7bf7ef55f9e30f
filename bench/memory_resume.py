"""How long a state takes back into a training: from the node's own memory, from a copy on another node, from the page cache.

    python bench/memory_resume.py --rounds 5 --gb 1.5 --gbit 10

One state dict (24 large tensors, 200 small ones; --gb of them in all) is put back into tensors that exist, each time in a new
process that has imported everything and waits for the word. The two nodes are hosts in network namespaces (tests/hosts.py; needs
root) with a veth between them, held to --gbit (a token bucket), and as fast as it goes. Keepers are real, one in each namespace;
their agent is this bench. What takes turns in each round:

    own          `checkpoint.load` from this node's keeper
    peer         the same from the other node's: from the moment at which this node's keeper is told to bring it
    socket       the same bytes over the same link, `sendfile` to `recv_into` memory that is there: the limit
    dcp          `torch.distributed.checkpoint.load` of the same state, its files in the page cache
    storage      `checkpoint.load` of the same state from storage, its files in the page cache

All that is loaded is held against the digests of what was saved, after the clock has stopped. Ratios are medians of the rounds'
ratios. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hosts import Cluster, Host, supported
from sidebyside import print_result, spread, unwind_on_sigterm

JOB, STEP, RANK = "bench", 1, 0
KEY = bytes(range(32))
PORT = 29700
BURST_BYTES = 1 << 20
"""Of the token bucket: what passes at once."""
OWN, PEER, SOCKET, DCP, STORAGE = "own", "peer", "socket", "dcp", "storage"
START_S = 300.0


# --- the processes that are measured: what they say is a line each


def program(what: str, folder: str, size_bytes: int, more: str) -> None:
    """Do one thing in a process of its own; wait for a line before what is timed."""
    warnings.filterwarnings("ignore")
    if what == "serve":
        _serve(more, size_bytes)
        return
    if what == SOCKET:
        _receive(more, size_bytes)
        return
    import torch
    import torch.distributed.checkpoint as torch_dcp
    from memory_states import state_of

    from robust_run import checkpoint
    from robust_run.checkpoint import memory, storage  # noqa: F401 - so that their imports are not timed
    from robust_run.ckpt_io.memory import client  # noqa: F401

    state = state_of(size_bytes)
    if what == "save":
        checkpoint.save({"state": state}, step=STEP)
        os.environ["ROBUST_CKPT_MEMORY"] = "off"
        storage_folder = os.path.join(folder, STORAGE)
        checkpoint.save({"state": state, "other": 1}, step=STEP, folder=storage_folder, every=1)
        torch_dcp.save(state, checkpoint_id=os.path.join(folder, DCP), no_dist=True)
        print(_digest(state), flush=True)
        sys.stdin.readline()  # the keeper is still to hash it
        return
    into = {name: torch.ones_like(tensor) for name, tensor in state.items()}
    del state
    loads: dict[str, Callable[[], object]] = {
        OWN: lambda: checkpoint.load({"state": into}),
        PEER: lambda: checkpoint.load({"state": into}),
        STORAGE: lambda: checkpoint.load({"state": into}, folder=os.path.join(folder, STORAGE)),
        DCP: lambda: torch_dcp.load(into, checkpoint_id=os.path.join(folder, DCP), no_dist=True),
    }
    print("ready", flush=True)
    sys.stdin.readline()
    begun_s = time.monotonic()
    loads[what]()
    ended_s = time.monotonic()
    print(begun_s, ended_s, _digest(into), flush=True)


def _digest(state: dict[str, Any]) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(memoryview(state[name].numpy()).cast("B"))
    return digest.hexdigest()


def _serve(address: str, size_bytes: int) -> None:
    """Send so many bytes to each who calls, out of memory."""
    descriptor = os.memfd_create("bench")
    os.posix_fallocate(descriptor, 0, size_bytes)
    with socket.create_server((address, PORT)) as listening:
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            with connection:
                at = 0
                while at < size_bytes:
                    at += os.sendfile(connection.fileno(), descriptor, at, min(8 << 20, size_bytes - at))


def _receive(address: str, size_bytes: int) -> None:
    """Fetch them into memory that has been touched."""
    room = memoryview(bytearray(b"\1") * size_bytes)
    print("ready", flush=True)
    sys.stdin.readline()
    begun_s = time.monotonic()
    with socket.create_connection((address, PORT)) as connection:
        at = 0
        while at < size_bytes:
            at += connection.recv_into(room[at : at + (8 << 20)])
    print(begun_s, time.monotonic(), "-", flush=True)


# --- keepers, and the bench as their agent


class Keeper:
    """A keeper in a host's network."""

    def __init__(self, host: Host, folder: str) -> None:
        from robust_run.ckpt_io.memory.agent_protocol import KeeperReady, KeeperSetup
        from robust_run.ckpt_io.memory.process import command

        self.folder = folder
        self._came = bytearray()
        self._socket, theirs = socket.socketpair()
        with theirs:
            argv = [*inside(host), *command(theirs.fileno())]
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], cwd="/", stdin=subprocess.DEVNULL)
        self._socket.settimeout(60.0)
        self.tell(KeeperSetup(folder=folder, address=host.address, key=KEY))
        self.port = self.next_of(KeeperReady).port

    def tell(self, message: Any) -> None:
        """Say something as its agent."""
        from robust_run.ckpt_io.memory.frames import frame

        self._socket.sendall(frame(message))

    def next_of(self, kind: type) -> Any:
        """Return what it says next of a kind."""
        import msgspec

        from robust_run.ckpt_io.memory.agent_protocol import KeeperNote, ToAgent
        from robust_run.ckpt_io.memory.frames import take

        while True:
            while (body := take(self._came)) is None:
                content = self._socket.recv(1 << 16)
                if not content:
                    raise SystemExit("a keeper has gone")
                self._came += content
            message = msgspec.msgpack.decode(body, type=ToAgent)
            if isinstance(message, KeeperNote):
                print(f"keeper: {message.text}", flush=True)
            if isinstance(message, kind):
                return message

    def begin(self, attempt: int) -> None:
        """Begin an attempt that starts from the step, or the first one."""
        from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins, LookInMemory, MemoryLook

        step = STEP if attempt else None
        self.tell(AttemptBegins(attempt=attempt, ranks=(RANK,), world_size=1, resumed_step=step))
        self.tell(LookInMemory(number=attempt))  # once it answers, the attempt has begun
        self.next_of(MemoryLook)

    def end(self) -> None:
        """Hang up, and wait for its end."""
        self._socket.close()
        self._process.wait(60.0)


def inside(host: Host) -> list[str]:
    """Return what runs a command in the network of a host, and else on this machine."""
    assert host._init, "it is on"
    return ["nsenter", f"--net=/proc/{host._init.pid}/ns/net"]


class Rig:
    """Two hosts and their link, the saved state, and what is done with it."""

    def __init__(self, cluster: Cluster, folder: Path, size_bytes: int) -> None:
        self._here, self._there = cluster[0], cluster[1]
        self._folder, self._size_bytes = folder, size_bytes
        self._attempt = 0
        self._holds = Keeper(self._there, str(folder / "there"))
        self._serves = self._program("serve", self._there.address, host=self._there)
        assert self._serves.stdout is not None
        self._serves.stdout.readline()
        self._holds.begin(0)
        saves = self._program("save", "", host=self._there, env=self._worker_env(self._holds, 0, ""))
        assert saves.stdout is not None
        self.digest = saves.stdout.readline().strip()
        self._holds.begin(1)  # waits until all is hashed
        self._attempt = 1
        saves.communicate("\n", 60.0)

    def limit(self, gbit: float) -> None:
        """Hold the link to so many Gbit/s in both directions; 0: to nothing."""
        for host in (self._here, self._there):
            base = [*inside(host), "tc", "qdisc"]
            subprocess.run([*base, "del", "dev", "eth0", "root"], stderr=subprocess.DEVNULL, check=False)
            if gbit:
                rate = ["tbf", "rate", f"{gbit}gbit", "burst", str(BURST_BYTES), "latency", "20ms"]
                subprocess.run([*base, "add", "dev", "eth0", "root", *rate], check=True)

    def seconds(self, what: str) -> float:
        """Load once in a way; return how long it took. SystemExit: something else was loaded."""
        self._attempt += 1
        if what == PEER:
            begun_s, ended_s, digest = self._from_peer()
        elif what == OWN:
            self._holds.begin(self._attempt)
            env = self._worker_env(self._holds, self._attempt, f"rrck+memory://0/{STEP}")
            begun_s, ended_s, digest = self._measured(self._program(what, "", host=self._there, env=env))
        else:
            begun_s, ended_s, digest = self._measured(self._program(what, self._there.address, host=self._here))
        if digest not in (self.digest, "-"):
            raise SystemExit(f"{what} loaded something else than was saved")
        return ended_s - begun_s

    def _from_peer(self) -> tuple[float, float, str]:
        from robust_run.ckpt_io.memory.agent_protocol import Bring, Source

        keeper = Keeper(self._here, str(self._folder / "here"))
        try:
            env = self._worker_env(keeper, self._attempt, f"rrck+memory://0/{STEP}")
            process = self._program(PEER, "", host=self._here, env=env)
            assert process.stdout is not None
            process.stdout.readline()
            begun_s = time.monotonic()
            sources = (Source(RANK, self._there.address, self._holds.port, "the other node"),)
            keeper.tell(Bring(attempt=self._attempt, from_attempt=0, step=STEP, sources=sources))
            keeper.begin(self._attempt)
            _, ended_s, digest = self._told(process)
            return begun_s, ended_s, digest
        finally:
            keeper.end()

    def _measured(self, process: subprocess.Popen[str]) -> tuple[float, float, str]:
        assert process.stdout is not None
        process.stdout.readline()
        return self._told(process)

    def _told(self, process: subprocess.Popen[str]) -> tuple[float, float, str]:
        said, _ = process.communicate("\n", START_S)
        words = said.split()
        if len(words) != 3:
            raise SystemExit(f"a load failed: {said!r}")
        return float(words[0]), float(words[1]), words[2]

    def _program(self, what: str, more: str, *, host: Host, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        argv = [*inside(host), sys.executable, os.path.abspath(__file__), "--program", what, str(self._folder)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROBUST_")}
        return subprocess.Popen(
            [*argv, str(self._size_bytes), more],
            env=kept | (env or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _worker_env(self, keeper: Keeper, attempt: int, resume: str) -> dict[str, str]:
        env = {"ROBUST_CKPT_MEMORY": keeper.folder, "ROBUST_JOB": JOB, "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        return env | {"RANK": "0", "WORLD_SIZE": "1"} | ({"ROBUST_RESUME": resume} if resume else {})

    def end(self) -> None:
        """End what runs."""
        self._serves.kill()
        self._serves.wait()
        self._holds.end()


@contextlib.contextmanager
def rig(size_bytes: int, folder: str | None) -> Iterator[Rig]:
    """Two hosts, and a state that is saved."""
    with tempfile.TemporaryDirectory(prefix="memory-resume-", dir=folder) as name, Cluster(2, Path(name)) as cluster:
        for each in ("here", "there"):
            (Path(name) / each).mkdir(mode=0o700)
        made = Rig(cluster, Path(name), size_bytes)
        try:
            yield made
        finally:
            made.end()


def measured(args: argparse.Namespace, made: Rig) -> dict[str, list[float]]:
    """Return the seconds of each case, round by round; the first round warms up and is dropped."""
    limited = f"{args.gbit:g} Gbit/s"
    cases: list[tuple[str, str, float]] = [(OWN, OWN, 0), (DCP, DCP, 0), (STORAGE, STORAGE, 0)]
    for words, gbit in ((limited, args.gbit), ("no limit", 0.0)):
        cases += [(f"{what}, {words}", what, gbit) for what in (PEER, SOCKET)]
    times: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    for number in range(args.rounds + 1):
        cut = number % len(cases)
        for name, what, gbit in cases[cut:] + cases[:cut]:
            made.limit(gbit)
            seconds = made.seconds(what)
            if number:
                times[name].append(seconds)
        done = ", ".join(f"{name} {values[-1]:.2f}" for name, values in times.items() if values)
        print(f"round {number}: {done or 'warmed up'}", flush=True)
    return times


def ratio(times: dict[str, list[float]], one: str, other: str, aim: str) -> dict[str, Any]:
    """How many times as long `one` took."""
    rounds = [a / b for a, b in zip(times[one], times[other], strict=True)]
    median = round(statistics.median(rounds), 3)
    return {"ratio": f"{one} over {other}", "median": median, "rounds": [round(each, 3) for each in rounds], "aim": aim}


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description="How long a state takes back into a training.")
    parser.add_argument(
        "--gb", type=float, default=1.5, help="GB of the state (default 1.5); 7 times that of memory is used"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gbit", type=float, default=10.0, help="Gbit/s that the link is held to (default 10)")
    parser.add_argument("--folder", help="where files are written (default: a temporary one)")
    parser.add_argument("--program", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        what, folder, size, more = args.program
        program(what, folder, int(size), more)
        return 0
    unwind_on_sigterm()
    if reason := supported():
        raise SystemExit(reason)
    with rig(int(args.gb * 1e9), args.folder) as made:
        times = measured(args, made)
    limited = f"{args.gbit:g} Gbit/s"
    wire_s = args.gb * 8 / args.gbit
    print(f"\nseconds until {args.gb:g} GB are back; {args.gbit:g} Gbit/s take {wire_s:.2f} s for them without headers")
    for name, values in times.items():
        print(f"{name:<24}{statistics.median(values):>8.3f}   ({min(values):.3f}-{max(values):.3f})")
    ratios = [
        ratio(times, OWN, DCP, "<= 0.25"),
        ratio(times, STORAGE, DCP, ""),
        ratio(times, f"{PEER}, {limited}", f"{SOCKET}, {limited}", "<= 1.2"),
        ratio(times, f"{PEER}, no limit", f"{SOCKET}, no limit", ""),
    ]
    for each in ratios:
        print(f"{each['ratio']:<44}{each['median']:>8.3f}   {'aim ' + each['aim'] if each['aim'] else ''}")
    cases = [{"name": name, "seconds": spread([round(each, 4) for each in values])} for name, values in times.items()]
    print_result("memory_resume", cases, gb=args.gb, gbit=args.gbit, ratios=ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
