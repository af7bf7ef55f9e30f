"""A torch.distributed made of a few lines, with the recorder at work in it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from worker_side import load_worker_side

from robust_run.tracer.files import ring
from robust_run.tracer.types import Op, RankTrace


class Tensor:
    def __init__(self, numel: int, dtype: str = "torch.float32") -> None:
        self.size, self.dtype = numel, dtype

    def numel(self) -> int:
        return self.size


class Backend:
    """What a group's calls are made with."""

    def __init__(self, seconds: float) -> None:
        self.options = SimpleNamespace(_timeout=timedelta(seconds=seconds))


class Limited:
    """The part of a process group that is about time limits."""

    def __init__(self) -> None:
        self.backends = {"cpu": Backend(600.0)}
        self.number = 0
        self.inside_barrier: list[Callable[[], object]] = []
        """What happens within `monitored_barrier`."""

    def rank(self) -> int:
        return self.number

    @property
    def _device_types(self) -> list[str]:
        return list(self.backends)

    def _get_backend(self, device: str) -> Any:
        return self.backends[device]

    def set_timeout(self, timeout: timedelta) -> None:
        self.backends["cpu"].options._timeout = timeout

    def barrier(self, opts: Any = None) -> object:
        return object()

    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool = False) -> None:
        for look in self.inside_barrier:
            look()


class FakeTorch:
    """A torch.distributed as far as the recorder knows it, and a recorder of its calls: in Python, or in C (`native`)."""

    def __init__(self, path: Path, native: str = "") -> None:
        class Work:
            action: Any = None

            def wait(self, timeout: float = 0.0) -> bool:
                if self.action:
                    self.action()
                return True

            def is_completed(self) -> bool:
                return True

        class ProcessGroup(Limited):
            group_name, group_desc = "7", "dp"
            action: Any = None
            returned: Any = Work

            def allreduce(self, tensors: Any, opts: Any = None) -> Work | None:
                if self.action:
                    self.action()
                return self.returned() if self.returned else None

            def recv(self, *_: Any, **__: Any) -> Work:
                return Work()

            broadcast = send = gather = scatter = alltoall = alltoall_base = recv_anysource = recv

            def _start_coalescing(self, device: str) -> None: ...

            def _end_coalescing(self, device: str) -> Work:
                return Work()

        self.Work, self.ProcessGroup = Work, ProcessGroup
        self.path = str(path)
        self.errors: list[Exception] = []
        self.served: list[None] = []
        self.group = ProcessGroup()
        self.inside_barrier = self.group.inside_barrier
        self.inits = 0
        self.distributed = SimpleNamespace(
            init_process_group=self.init,
            new_group=lambda *_, **__: None,
            destroy_process_group=lambda *_: None,
            _set_pg_timeout=lambda timeout, group=None: (group or self.group).set_timeout(timeout),
            _add_ephemeral_timeout_for_all_pgs=lambda timeout: None,
            is_initialized=lambda: False,
            GroupMember=SimpleNamespace(WORLD=self.group),
            _world=SimpleNamespace(pg_group_ranks={self.group: {3: 0, 7: 1}}),
        )
        ring.create(self.path, 3, 8)
        self.worker = worker = load_worker_side()
        library = SimpleNamespace(ProcessGroup=ProcessGroup, Work=Work)
        made = worker.load("native" if native else "hooks")
        if native:
            self.ring = made.NativeRing(self.path, self.errors.append, made.extension(native))
        else:
            self.ring = worker.load("recorder").Ring(self.path, self.errors.append)
        hooks_class = made.NativeHooks if native else made.Hooks
        self.hooks = hooks = hooks_class(self.ring, self.distributed, library, lambda: self.served.append(None))
        hooks.late_done = True  # that part needs all of torch
        hooks.install()

    def init(self, *_: Any, **__: Any) -> str:
        self.inits += 1
        return "made"

    @property
    def trace(self) -> RankTrace:
        trace = ring.read(self.path)
        assert trace is not None
        assert not self.errors
        return trace

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.trace.ops

    @property
    def header(self) -> ring.RingHeader:
        header = ring.RingReader(self.path).header()
        assert header is not None
        return header
