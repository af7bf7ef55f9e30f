"""How fast a keeper sends a part to another node's keeper, as it is and over TLS (`--tls-cert`): over loopback, no network.

    python bench/memory_link.py --mb 1024 --rounds 5

One process sends, one receives into a buffer and compares the digest, as keepers do, without the rests between chunks that a copy
leaves to training. Sides take turns; over loopback both processes need a core, so on a busy machine the seconds of processor time
are what counts.

    mb_per_s        of the part, from the first word to the last answer
    cpu_s_per_gib   of both processes

Needs the openssl command. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from authorities import Authority
from sidebyside import print_result

from robust_run.ckpt_io.memory.agent_protocol import TlsFiles
from robust_run.ckpt_io.memory.copies.greeting import Credentials, dial
from robust_run.ckpt_io.memory.copies.link import Link, LinkLost
from robust_run.ckpt_io.memory.copies.link_tls import LinkTls
from robust_run.ckpt_io.memory.copies.server import CopyServer
from robust_run.ckpt_io.memory.copies.words import Go, Kept, Push
from robust_run.store.digests import digest

KEY = bytes(range(32))
PLAIN, TLS = "plain", "tls"
SIDES = (PLAIN, TLS)
WAIT_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1024, help="size of the part, in MiB")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    size_bytes = args.mb << 20
    content = os.urandom(1 << 20) * args.mb
    part = os.memfd_create("part")
    os.pwrite(part, content, 0)
    said = push_of(size_bytes, digest(content))
    del content
    with tempfile.TemporaryDirectory() as folder:
        cert, key, ca = Authority(Path(folder), "bench").signed("node")
        tls = LinkTls(TlsFiles(cert=cert, key=key, ca=ca))
        to_show = {PLAIN: Credentials(KEY), TLS: Credentials(KEY, tls)}
        speeds: dict[str, list[float]] = {side: [] for side in SIDES}
        costs: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(args.rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                took_s, cpu_s = sent(part, said, to_show[side])
                speeds[side].append(size_bytes / 1e6 / took_s)
                costs[side].append(cpu_s / (size_bytes / (1 << 30)))
                print(
                    f"{side}, {number + 1}: {speeds[side][-1]:.0f} MB/s, {costs[side][-1]:.2f} s of processor time a GiB"
                )
    cases = [
        {
            "name": side,
            "mb_per_s": {"median": round(statistics.median(speeds[side])), "best": round(max(speeds[side]))},
            "cpu_s_per_gib": {"median": round(statistics.median(costs[side]), 3), "best": round(min(costs[side]), 3)},
        }
        for side in SIDES
    ]
    print_result("memory_link", cases, part_mib=args.mb, rounds=args.rounds)


def push_of(size_bytes: int, digest_of_it: bytes) -> Push:
    return Push(
        rank=0,
        ranks=(0,),
        attempt=0,
        step=1,
        world_size=1,
        used_bytes=size_bytes,
        room_bytes=size_bytes,
        digest=digest_of_it,
        created_s=0.0,
        during=0,
        stride=1,
    )


def sent(part: int, said: Push, to_show: Credentials) -> tuple[float, float]:
    """Send a part twice, the first time to have all memory there; return seconds, and processor seconds, of the second time."""
    with receiver(to_show) as port:
        link = dial("127.0.0.1", port, to_show, WAIT_S)
        send(link, part, said)
        began_s, cpu_s = time.monotonic(), own_cpu_s()
        others_s = send(link, part, said)
        took_s, mine_s = time.monotonic() - began_s, own_cpu_s() - cpu_s
        link.cut()
        link.close()
    return took_s, mine_s + others_s


def send(link: Link, part: int, said: Push) -> float:
    """Send a part; return the processor seconds that it took over there."""
    link.send(said)
    link.receive_one(Go, wait_s=WAIT_S)
    link.send_part(part, said.used_bytes)
    return float(link.receive_one(Kept, wait_s=WAIT_S).stride) / 1e6


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def receiver(to_show: Credentials) -> Iterator[int]:
    """A process that takes what comes; in its answers the stride is its processor time, in microseconds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                CopyServerProcess(listening, to_show).run()
            os._exit(0)
        port = int(listening.getsockname()[1])
    try:
        yield port
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


class CopyServerProcess:
    """What the receiving process does."""

    def __init__(self, listening: socket.socket, to_show: Credentials) -> None:
        self._server = CopyServer(listening, to_show, self._serve)
        self._into = os.memfd_create("into")

    def run(self) -> None:
        """Serve until it is killed."""
        self._server.run()

    def _serve(self, link: Link, _: int) -> None:
        with contextlib.suppress(LinkLost):
            while True:
                said = link.receive(None)
                cpu_s = own_cpu_s()
                link.send(Go())
                assert link.receive_part(self._into, said), "what came is not what was sent"
                link.send(Kept(stride=max(1, round((own_cpu_s() - cpu_s) * 1e6))))


if __name__ == "__main__":
    main()
