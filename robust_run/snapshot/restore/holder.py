"""The process that restores a snapshot in a mount namespace of its own, and keeps it there for workers to enter.

`python -m robust_run.snapshot.restore.holder`, with a socket to its starter, `prefetch.inside.start`: see `mounts.holding`. It
imports little, as a mount takes milliseconds.

**Invariant:** it answers with a place that was looked at, or with the reason why there is none; then nothing is mounted.
"""

from __future__ import annotations

import os
import sys

import msgspec

from robust_run.errors import RobustRunError
from robust_run.mounts import namespace, syscalls
from robust_run.mounts.facts import gather
from robust_run.mounts.holding import HolderReady, HolderResult, Tell, main, own_namespace
from robust_run.mounts.ladder import POSSIBLE, KernelFacts
from robust_run.snapshot.restore import mounting
from robust_run.snapshot.restore.place import LARGEST_ORDER_BYTES, PlaceOrder, StagePlace
from robust_run.snapshot.rules import restore_ladder as ladder


def make(order: PlaceOrder, tell: Tell) -> HolderResult:
    """Make the place: walk down the ladder until a rung holds. For a process with one thread, changed by it for good.

    Raises `NothingLeft`.
    """
    found = gather(order.stage, os.environ)
    facts = facts_of(order, found)
    tried: dict[ladder.Rung, str] = {}
    choice = ladder.choose(facts, tried, order.rungs)  # before anything is changed
    as_user = found.mount_namespace != POSSIBLE
    namespace.enter(as_user=as_user)
    syscalls.mount("tmpfs", order.stage, source="robust-run", flags=syscalls.NO_DEVICES, options="mode=0755")
    os.chdir(order.stage)
    writable = order.writable and not found.overlay_upper
    place = StagePlace(order, order.stage, as_user=as_user, writable=writable, tell=tell)
    while True:
        try:
            place.make(choice.rung)
            break
        except (RobustRunError, OSError) as error:
            tried[choice.rung] = " ".join(str(error).split())[:1000]
        choice = ladder.choose(facts, tried, order.rungs)
    namespaces = [own_namespace("mnt"), *([own_namespace("user")] if as_user else [])]
    ready = HolderReady(
        rung=choice.rung,
        chosen=choice.sentence(),
        in_user_namespace=as_user,
        control_path=place.server.control_path if place.server is not None else "",
        mount_at=order.manifest.roots[0].path,
    )

    def stop() -> None:  # it also keeps the place: what it has unpacked is in use
        if place.server is not None:
            place.server.stop()

    return HolderResult(ready=ready, namespaces=namespaces, stop=stop)


def facts_of(order: PlaceOrder, found: KernelFacts) -> ladder.RestoreFacts:
    """Return what decides in this process."""
    manifest = order.manifest
    removed = sum(root.removed for root in manifest.roots)
    return ladder.RestoreFacts(
        kernel=found,
        lazy=order.is_lazy,
        same_path=mounting.not_the_same_path(manifest),
        whiteouts=f"{removed} names were removed, and the image has no whiteouts"
        if removed and not manifest.has_whiteouts
        else "",
        unsquashfs=found.unsquashfs,
    )


def hold(line: bytes, tell: Tell) -> HolderResult:
    """Make the place that a starter's line describes."""
    try:
        return make(msgspec.json.decode(line, type=PlaceOrder), tell)
    except (RobustRunError, OSError, msgspec.MsgspecError) as error:
        return HolderResult(ready=HolderReady(failed=_failure(error)), exit_code=1)


def _failure(error: Exception) -> str:
    """Return what the starter reads: the reasons for each rung as JSON if there are such, else a sentence."""
    if isinstance(error, ladder.NothingLeft):
        return msgspec.json.encode(error.refused).decode()
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main(hold, LARGEST_ORDER_BYTES))
