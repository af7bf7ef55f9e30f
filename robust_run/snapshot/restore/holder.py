"""The process that restores a snapshot in a mount namespace of its own, and keeps it there for workers to enter.

`python -m robust_run.snapshot.restore.holder`, with a socket to its starter, `prefetch.inside.start`, whose words it speaks: it
hands out descriptors of its namespaces and stays until the starter hangs up. It imports little: a mount takes milliseconds.

**Invariant:** it answers with a place that was looked at, or with the reason why there is none; then nothing is mounted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from robust_run.errors import RobustRunError
from robust_run.prefetch.mount import facts as machine
from robust_run.prefetch.mount import syscalls, userns
from robust_run.prefetch.mount.ladder import Facts as MachineFacts
from robust_run.snapshot.restore import ladder, mounting
from robust_run.snapshot.restore.order import LARGEST_ORDER_BYTES, Order
from robust_run.snapshot.restore.place import Place


def kernel_facts(found: MachineFacts) -> ladder.Kernel:
    """Return what was found out by trying, as the ladder takes it. Pure."""
    return ladder.Kernel(
        mount_namespace=found.mount_namespace,
        user_namespace=found.user_namespace,
        squashfs=found.squashfs,
        loop=found.loop,
        fuse=found.fuse,
        overlay=found.overlay,
        squashfuse="" if found.squashfuse else "squashfuse_ll is not installed (squashfuse)",
    )


def make(
    order: Order, tell: Callable[[str], None], note: Callable[[str], None]
) -> tuple[dict[str, Any], list[int], Place]:
    """Make the place: walk down the ladder until a rung holds. For a process with one thread, changed by it for good.

    Returns what is answered, and the namespaces. Raises `NothingLeft`.
    """
    found = machine.gather(order.stage, os.environ)
    facts = facts_of(order, found)
    tried: dict[ladder.Rung, str] = {}
    choice = ladder.choose(facts, tried, order.rungs)  # before anything is changed
    as_user = found.mount_namespace != ladder.POSSIBLE
    userns.enter(as_user=as_user)
    syscalls.mount("tmpfs", order.stage, source="robust-run", flags=syscalls.NO_DEVICES, options="mode=0755")
    os.chdir(order.stage)
    writable = order.writable and not found.overlay_upper
    place = Place(order, order.stage, as_user=as_user, writable=writable, tell=tell, note=note)
    while True:
        try:
            place.make(choice.rung)
            break
        except (RobustRunError, OSError) as error:
            tried[choice.rung] = " ".join(str(error).split())[:1000]
        choice = ladder.choose(facts, tried, order.rungs)
    namespaces = [os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)]
    if as_user:
        namespaces.append(os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC))
    ready = {
        "rung": choice.rung,
        "chosen": choice.sentence(),
        "in_user_namespace": as_user,
        "control_path": place.server.control_path if place.server is not None else "",
        "mount_at": order.manifest.roots[0].path,
    }
    return ready, namespaces, place


def facts_of(order: Order, found: MachineFacts) -> ladder.Facts:
    """Return what decides in this process."""
    manifest = order.manifest
    removed = sum(root.removed for root in manifest.roots)
    return ladder.Facts(
        kernel=kernel_facts(found),
        lazy=order.is_lazy,
        same_path=mounting.not_the_same_path(manifest),
        whiteouts=f"{removed} names were removed, and the image has no whiteouts"
        if removed and not manifest.has_whiteouts
        else "",
        unsquashfs="" if found.unsquashfs else "unsquashfs is not installed (squashfs-tools)",
    )


def run(channel: socket.socket) -> int:
    """Do what the starter says, and stay until it hangs up. Return the exit code."""

    def tell(message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the starter is gone; reading shows it
            channel.sendall(json.dumps(message).encode() + b"\n")

    with channel.makefile("rb") as lines:
        line = lines.readline(LARGEST_ORDER_BYTES)
        if not line.endswith(b"\n"):
            return 1
        try:
            order = msgspec.json.decode(line, type=Order)
            ready, namespaces, place = make(
                order,
                lambda sentence: tell({"sentence": sentence}),
                lambda sentence: tell({"sentence": sentence, "is_note": True}),
            )
        except (RobustRunError, OSError, msgspec.MsgspecError) as error:
            _answer(channel, b"-", [])
            tell({"failed": _failure(error)})
            return 1
        _answer(channel, b"+", namespaces)
        tell(ready)
        for descriptor in namespaces:
            os.close(descriptor)
        while lines.read(1):
            pass
    if place.server is not None:
        place.server.stop()
    return 0


def _failure(error: Exception) -> str:
    """Return what the starter reads: the reasons for each rung as JSON if there are such, else a sentence."""
    if isinstance(error, ladder.NothingLeft):
        return msgspec.json.encode(error.refused).decode()
    return " ".join(str(error).split()) or type(error).__name__


def _answer(channel: socket.socket, mark: bytes, descriptors: list[int]) -> None:
    with contextlib.suppress(OSError):
        socket.send_fds(channel, [mark], descriptors)


def main() -> int:
    """Run with the socket as standard input. Signals that end jobs do not end it: workers still read while they save."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return run(socket.socket(fileno=os.dup(0)))


if __name__ == "__main__":
    sys.exit(main())
