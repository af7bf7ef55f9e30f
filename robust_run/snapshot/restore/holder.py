"""The process that restores a snapshot in a mount namespace of its own, and keeps it there for workers to enter.

`python -m robust_run.snapshot.restore.holder`, with a socket to its starter, `prefetch.inside.start`, whose words it speaks: it
hands out descriptors of its namespaces and stays until the starter hangs up. It imports little: a mount takes milliseconds.

**Invariant:** it answers with a place that was looked at, or with the reason why there is none; then nothing is mounted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
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
from robust_run.snapshot import listing
from robust_run.snapshot.capture.stage import make_whiteouts
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.restore import ladder, mounting, unpacked
from robust_run.snapshot.restore.order import LARGEST_ORDER_BYTES, Order
from robust_run.snapshot.types import Item, Manifest
from robust_run.snapshot.verify import check_tree

#: So many files of a restored environment are looked at, and read if they are small.
_LOOKED_AT = 32
_LINE_BYTES = 64 << 10
_READ_BYTES = 1 << 20


class Place:
    """What is made in the stage, which is the working directory of this process."""

    def __init__(self, order: Order, *, as_user: bool, writable: bool, tell: Callable[[str], None]) -> None:
        self._order, self._as_user, self._tell = order, as_user, tell
        self._scratch = mounting.Scratch(folder=os.path.abspath("changes")) if writable else None
        self._image_at = os.path.abspath("image")
        self.server: Any = None

    def make(self, rung: ladder.Rung) -> None:
        """Restore it in one way. After an error, nothing of that way is mounted."""
        os.makedirs(self._image_at, exist_ok=True)
        manifest = self._order.manifest
        mounted = self._extracted() if rung == "extract" else self._mounted(rung)
        try:
            check(manifest, mounted.image_at, is_lazy=self._order.is_lazy)
        except BaseException:
            mounted.undo()
            raise

    def _mounted(self, rung: ladder.Rung) -> mounting.Mounted:
        order = self._order
        image = self._served(order.lazy) if order.is_lazy else order.image
        reader: mounting.Reader = "kernel" if rung == "mount" else "squashfuse"
        return mounting.mount(
            order.manifest, image, self._image_at, reader=reader, userns=self._as_user, scratch=self._scratch
        )

    def _served(self, raw: msgspec.Raw) -> str:
        """Start the block server and return the file that it shows."""
        if self.server is None:
            from robust_run.prefetch import server
            from robust_run.prefetch.inside.types import InsidePlan

            plan = msgspec.json.decode(raw, type=InsidePlan)
            os.mkdir("blocks")
            self.server = server.start(
                plan.image_url,
                plan.block_map,
                plan.cache_root,
                os.path.abspath("blocks"),
                hot=plan.hot,
                options=plan.serve_options,
                on_problem=self._tell,
            )
        return str(self.server.image_path)

    def _extracted(self) -> mounting.Mounted:
        """Unpack it, and give what was unpacked the looks of an image: names that were removed are hidden from here."""
        order = self._order
        found = unpacked.unpack(order.manifest, order.image, order.unpack_in)  # used until this process ends
        view = os.path.abspath("view")
        os.makedirs(view, exist_ok=True)
        shutil.copyfile(os.path.join(found.path, listing.NAME), os.path.join(view, listing.NAME))
        for name in (f"r{root.folder}" for root in order.manifest.roots if root.changed):
            os.symlink(os.path.join(found.path, name), os.path.join(view, name))
        for index, root in enumerate(order.manifest.roots):
            gone = [item.path for item in found.items if item.kind == "w" and item.root == index]
            if gone and not make_whiteouts(os.path.join(view, f"w{root.folder}"), gone):
                raise RestoreRefused(f"{root.path}: {len(gone)} names were removed, and this kernel hides none for us")
        manifest = msgspec.structs.replace(order.manifest, has_whiteouts=True)
        mounted = mounting.Mounted(view, None)
        try:
            mounting.lay_over(manifest, view, mounted, userns=self._as_user, scratch=self._scratch)
        except BaseException:
            mounted.undo()
            raise
        return mounted


def check(manifest: Manifest, image_at: str, *, is_lazy: bool) -> None:
    """Look at a few files of a restored environment, chosen at random. Raises `RestoreRefused`.

    The image as a whole was verified before; what could be wrong is what was made of it.
    """
    if is_lazy:
        return  # each block is verified as it comes, and looking would wait for blocks that nobody else needs
    tops = [root.path for root in manifest.roots]
    for item in sample(os.path.join(image_at, listing.NAME), _LOOKED_AT):
        if not 0 <= item.root < len(tops):
            continue
        if item.kind == "w":  # the same name may have been made anew
            anew = os.path.join(image_at, f"r{manifest.roots[item.root].folder}", item.path)
            if not os.path.lexists(anew) and os.path.lexists(os.path.join(tops[item.root], item.path)):
                raise RestoreRefused(f"what was mounted is not what was captured: {item.path} should be gone")
            continue
        reads = 1.0 if item.size_bytes <= _READ_BYTES else 0.0
        problems = check_tree(tops, [item], digests=reads, exact=False)
        if problems:
            raise RestoreRefused(f"what was mounted is not what was captured: {problems[0]}")


def sample(path: str, count: int) -> list[Item]:
    """Return some lines of a listing of a verified image, without reading all of it. Raises OSError."""
    found = []
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        for _ in range(count):
            file.seek(random.randrange(max(1, size_bytes)))  # noqa: S311 - which files are looked at is no secret
            file.readline(_LINE_BYTES)  # the rest of a line
            line = file.readline(_LINE_BYTES).rstrip(b",]\n")
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(line + b"]", type=Item))
    return found


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


def make(order: Order, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[int], Place]:
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
    place = Place(order, as_user=as_user, writable=order.writable and not found.overlay_upper, tell=tell)
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
            ready, namespaces, place = make(order, lambda sentence: tell({"sentence": sentence}))
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
