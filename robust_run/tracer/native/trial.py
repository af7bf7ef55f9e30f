"""Uses the recorder in C once, in a process that may die of it; the recorder in Python must make the same ring of the same calls.

Run with the path of the object; ends with 0 if all is well. Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import struct
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import Any

ARM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "arm", "sitecustomize.py")
TIMES = struct.Struct("=QQQ")


class Tensor:
    """As much of a tensor as calls tell of."""

    dtype = "torch.float32"

    def numel(self) -> int:
        """Return the number of its elements."""
        return 3


def main() -> None:
    """Compare. Raises SystemExit, or what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        in_python = record(load(), os.path.join(folder, "python"))
        in_c = record(load(), os.path.join(folder, "c"), sys.argv[1])
    if in_python != in_c:
        raise SystemExit("it does not write what it should")


def load() -> ModuleType:
    """Return the worker's files, which arm nothing under another name."""
    spec = importlib.util.spec_from_file_location("worker_side", ARM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(worker: ModuleType, path: str, native: str = "") -> list[bytes]:
    """Let a few calls be recorded into a new ring; return its slots without their times."""
    recorder = worker.load("recorder")
    with open(path, "wb") as file:
        file.write(recorder.MAGIC + struct.pack("=QQQQ", recorder.VERSION, 0, 0, 1))
        file.truncate(recorder.FILE_BYTES)
    library, distributed = torch()
    ring: Any
    if native:
        module = worker.load("native")
        ring = module.NativeRing(path, fail, module.extension(native))
        hooks = module.NativeHooks(ring, distributed, library, lambda: None)
    else:
        ring = recorder.Ring(path, fail)
        hooks = worker.load("hooks").Hooks(ring, distributed, library, lambda: None)
    hooks.late_done = True
    hooks.install()
    group = library.ProcessGroup()
    distributed._world.pg_group_ranks[group] = {0: 0}
    for _ in range(3):
        works = [group.allreduce([Tensor()], None), group.send([Tensor()], 0, 7)]
        assert [work.wait() for work in works] == [True, True]
        assert works[0].is_completed()
    slots = [bytes(ring.octets[at : at + 64]) for at in range(recorder.SLOTS_AT, recorder.SLOTS_AT + 6 * 64, 64)]
    assert all(all(TIMES.unpack_from(slot)) for slot in slots)
    return [slot[TIMES.size :] for slot in slots]


def torch() -> tuple[Any, Any]:
    """Return as much of torch's library, and of torch.distributed, as is wrapped."""

    class Work:
        def wait(self) -> bool:
            return True

        is_completed = wait

    class ProcessGroup:
        group_name, group_desc = "0", ""

        def allreduce(self, *_: Any) -> Work:
            return Work()

        send = allreduce

    def make(*_: Any) -> None: ...

    distributed = SimpleNamespace(
        init_process_group=make,
        new_group=make,
        destroy_process_group=make,
        is_initialized=lambda: False,
        _world=SimpleNamespace(pg_group_ranks={}),
    )
    return SimpleNamespace(ProcessGroup=ProcessGroup, Work=Work), distributed


def fail(reason: Exception) -> None:
    """Both recorders say here what went wrong."""
    raise reason


if __name__ == "__main__":
    main()
