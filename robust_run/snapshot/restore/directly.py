"""Restoring without a process that keeps it: as root of the machine, a thread makes the place, and a descriptor keeps it.

Linux keeps mount namespaces per thread, so a thread of ours can leave the namespace of the others, mount in its own, and end.
That takes a few milliseconds; an interpreter that is started for it takes a hundred. Only what needs a living process
(squashfuse, a block server, a user namespace) is left to `holder`, and so is finding out why it is not possible here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import robust_run
from robust_run.errors import RobustRunError
from robust_run.mounts import namespace, syscalls
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.restore.place import PlaceOrder, StagePlace
from robust_run.snapshot.rules.restore_ladder import Rung

_ENTER = os.path.join(os.path.dirname(os.path.abspath(robust_run.__file__)), "prefetch", "inside", "enter.py")
_RUNGS: tuple[Rung, ...] = ("mount", "extract")


class Held:
    """A mount namespace in which a snapshot is restored. It ends with the last program in it, after `stop`."""

    def __init__(self, rung: Rung, namespace: int, place: StagePlace) -> None:
        """Made by `hold`."""
        self.rung = rung
        self._namespace, self._place = namespace, place

    def command(self, argv: Sequence[str], working_directory: str) -> list[str]:
        """Return the argv that runs a program in it, as `prefetch.inside.Inside.command` does."""
        namespace = f"/proc/{os.getpid()}/fd/{self._namespace}"
        return [sys.executable, "-I", "-S", _ENTER, namespace, "-", working_directory, *argv]

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptor of its namespace."""
        return (self._namespace,)

    def stop(self) -> None:
        """Let it go. Never raises."""
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1
            if self._place.unpacked is not None:
                self._place.unpacked.let_go()


def hold(order: PlaceOrder) -> Held | None:
    """Restore by the first rung of an order. None: that rung is not for us, or not possible; nothing is left mounted then.

    Raises `RestoreRefused` after the order's limit.
    """
    rung = order.rungs[0]
    if rung not in _RUNGS or order.is_lazy or os.geteuid() != 0:
        return None
    made: list[Held] = []
    thread = threading.Thread(target=_make, args=(order, rung, made), name="setup-mount", daemon=True)
    thread.start()
    thread.join(order.limit_s)
    if thread.is_alive():
        raise RestoreRefused(f"{order.image}: it could not be made ready within {order.limit_s:g} s")
    return made[0] if made else None


def _make(order: PlaceOrder, rung: Rung, made: list[Held]) -> None:
    """In a thread, which the kernel takes its namespace away from when it ends, unless a process has a descriptor of it."""
    place = StagePlace(order, order.stage, as_user=False, writable=order.writable)
    try:
        namespace.enter(as_user=False)
        syscalls.mount("tmpfs", order.stage, source="robust-run", flags=syscalls.NO_DEVICES, options="mode=0755")
        place.make(rung)
        made.append(Held(rung, os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), place))
    except (RobustRunError, OSError):
        if place.unpacked is not None:
            place.unpacked.let_go()
