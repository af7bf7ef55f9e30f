"""A GPU and a torch that computes on it, as far as timing steps needs them: a stream is a time at which it will have come so far.

Calls return at once; what was asked for takes place in order, in a time of the test's own. Nothing may wait for this GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any


class FakeGpu:
    """The clock of the host and the streams of one GPU, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.is_capturing = False
        self.events_made = self.asked = 0
        self.broken: Exception | None = None
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                gpu.events_made += 1
                self.at_ms = -1.0

            def record(self, stream: Stream | None = None) -> None:
                gpu.touch()
                self.at_ms = (stream or gpu.stream).time_ms()

            def query(self) -> bool:
                gpu.touch()
                return gpu.now_ms >= self.at_ms

            def elapsed_time(self, end: Event) -> float:
                gpu.touch()
                assert gpu.now_ms >= end.at_ms, "CUDA error: device not ready"
                return end.at_ms - self.at_ms

            def synchronize(self) -> None:
                raise AssertionError("the program was made to wait")

        class Stream:
            def __init__(self, number: int) -> None:
                self.stream_id, self.device_index, self.device_type = number, 0, 1
                self.ready_ms = 0.0

            def time_ms(self) -> float:
                """When it will have done what was asked of it so far."""
                return max(self.ready_ms, gpu.now_ms)

            def record_event(self, event: Event | None = None) -> Event:
                event = event or Event(enable_timing=True)
                event.record(self)
                return event

            def wait_event(self, event: Event) -> None:
                self.ready_ms = max(self.ready_ms, event.at_ms)

        self.Event, self.Stream = Event, Stream
        self.stream = self.main = Stream(0)

    def touch(self) -> None:
        """What the driver is asked for: not while a graph is captured, and not of a GPU that has fallen off the bus."""
        self.asked += 1
        if self.broken:
            raise self.broken
        assert not self.is_capturing, "CUDA error: operation not permitted when stream is capturing"

    def compute(self, length_ms: float) -> None:
        """Have the current stream compute for so long."""
        self.stream.ready_ms = self.stream.time_ms() + length_ms

    def wait_until(self, at_ms: float) -> None:
        """Have the current stream wait for something that happens then."""
        self.stream.ready_ms = max(self.stream.time_ms(), at_ms)


class FakeTensor:
    """A loss."""

    def __init__(self) -> None:
        self.grad_fn: object | None = object()
        self._backward_hooks = SimpleNamespace(move_to_end=lambda *_, **__: None)
        self.hooks: list[Callable[[Any], None]] = []

    def register_hook(self, hook: Callable[[Any], None]) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(id=0, remove=lambda: self.hooks.remove(hook))


class FakeCuda:
    """torch, and what is beneath torch.distributed, on such a GPU. Of a group, each call is done at `done_at_ms`."""

    def __init__(self, *, initialized: bool = True) -> None:
        self.gpu = gpu = FakeGpu()
        self.done_at_ms = 0.0
        self.callbacks: list[Callable[[], None]] = []
        self.lasting_ms = 0.0
        cuda = self

        class Work:
            def wait(self) -> bool:
                gpu.wait_until(cuda.done_at_ms)
                return True

        class ProcessGroup:
            def allreduce(self, tensors: object, opts: Any = None) -> Work | None:
                if opts is not None and not opts.asyncOp:
                    gpu.wait_until(cuda.done_at_ms)
                    return None
                return Work()

            def broadcast(self, tensors: object, opts: Any = None) -> Work:
                return Work()

        self.Work, self.group = Work, ProcessGroup()
        self.hooks = SimpleNamespace(
            library=SimpleNamespace(ProcessGroup=ProcessGroup, Work=Work), replace=lambda _: None, timed=[], reduced=[]
        )
        engine = SimpleNamespace(queue_callback=self.callbacks.append)
        stream = lambda _=None: gpu.stream  # noqa: E731
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(
                is_initialized=lambda: initialized,
                current_device=lambda: 0,
                current_stream=stream,
                Event=gpu.Event,
                Stream=gpu.Stream,
            ),
            _C=SimpleNamespace(
                _cuda_getCurrentStream=lambda _: (gpu.stream.stream_id, 0, 1),
                _cuda_isCurrentStreamCapturing=lambda: gpu.is_capturing,
            ),
            Tensor=FakeTensor,
            autograd=SimpleNamespace(Variable=SimpleNamespace(_execution_engine=engine)),
        )

    def all_reduce(self, done_at_ms: float, *, on_stream: bool = False) -> None:
        """As torch.distributed's: on a stream of its own that is waited for at once, or on the current one."""
        self.done_at_ms = done_at_ms
        work = self.group.allreduce([], SimpleNamespace(asyncOp=not on_stream))
        if work is not None:
            work.wait()

    def backward(self, loss: FakeTensor, length_ms: float = 0.0, buckets_at_ms: float = 0.0) -> None:
        """As torch.autograd's: computes in a thread of its own; then waits for the buckets of DistributedDataParallel."""

        def compute() -> None:
            for hook in list(loss.hooks):
                hook(None)
            self.callbacks.append(lambda: self.gpu.wait_until(buckets_at_ms))
            self.gpu.compute(length_ms)
            if self.in_backward:
                self.in_backward()
            for callback in self.callbacks:
                callback()
            self.callbacks.clear()

        with ThreadPoolExecutor(1) as engine:
            engine.submit(compute).result()

    in_backward: Callable[[], None] | None = None
