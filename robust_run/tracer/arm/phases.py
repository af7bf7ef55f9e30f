"""Has torch tell a timer what a step consists of: where backward passes begin and end, and where the GPU waits for peers.

`sitecustomize` loads this file by its path at the first optimizer step of a program that uses CUDA by then; of others nothing is
timed. Waiting for peers is what the stream of the computation does between the beginning of a wait for a collective and its end,
of one that runs on that stream itself from its beginning, and after a backward pass has computed all (DistributedDataParallel
waits for its buckets there, in C++). Not seen: waits within a captured graph, and those on other streams.

A wrapper calls what it wraps exactly once, with the same arguments, and passes result or exception on. No failure of ours
reaches the program. Nothing here makes the program or the GPU wait, or starts CUDA.
"""

from __future__ import annotations

import functools
import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one; `sitecustomize` puts it here."""
        ...

    def give_up(reason: Exception, what: str = ...) -> None:
        """Say once that something is not done, and why, on one line."""
        ...


timing = load("phase_timer")
SWITCH = "ROBUST_TRACE_PHASES"


def say(reason: Exception) -> None:
    """Say once that steps are not timed."""
    give_up(reason, "timing what steps consist of")


def begin(path: str, hooks: Any, torch: Any) -> Callable[[], None] | None:
    """Begin to time steps if the program uses CUDA; return what is to be called after each of them, this one included."""
    switch = os.environ.get(SWITCH, "")
    if switch == "off" or not os.path.exists(path):
        return None
    if switch == "host":
        device = load("host_clock").HostClock()
    elif torch.cuda.is_initialized():  # asked of Python alone: it starts nothing
        device = load("phase_stream").Stream(torch)
    else:
        return None
    timer = timing.Timer(path, device, say)
    passes = Passes(timer, torch)
    hooks.timed[:] = [passes]
    Waits(passes, hooks, torch).install()
    return timer.end_step  # type: ignore[no-any-return]


class Passes:
    """Which threads are at work on a step: the one that makes steps, and during its backward passes autograd's."""

    def __init__(self, timer: Any, torch: Any) -> None:
        self.timer, self.torch = timer, torch
        self.thread, self.engine_thread = get_ident(), 0
        self.is_backward = False

    def is_ours(self) -> bool:
        """Whether this thread's marks are of the step."""
        ident = get_ident()
        return ident == self.thread or (self.is_backward and ident == self.engine_thread)

    def begin(self, args: Any, kwargs: Any) -> Any:
        """Note that a backward pass begins; return what `end` needs, None for a pass that is not timed."""
        if self.timer.making is None or self.is_backward or get_ident() != self.thread:
            return None
        self.timer.mark(timing.BACKWARD)
        self.is_backward = True
        return self.watch(args[0] if args else kwargs.get("tensors")) or self

    def end(self, begun: Any) -> None:
        """Note that it has ended."""
        if begun is None:
            return
        self.is_backward, self.engine_thread = False, 0
        if begun is not self:
            begun.remove()
        self.timer.mark(timing.BACKWARD_END)

    def watch(self, tensors: Any) -> Any:
        """Have the first thing that this backward pass computes tell us that it goes on, before others hear of it."""
        try:
            tensor = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
            compiled = sys.modules.get("torch._dynamo.compiled_autograd")
            if type(tensor) is not self.torch.Tensor or tensor.grad_fn is None:
                return None
            if getattr(compiled, "compiled_autograd_enabled", False):  # it would trace what is called
                return None
            handle = tensor.register_hook(self.going)
            tensor._backward_hooks.move_to_end(handle.id, last=False)
            return handle
        except Exception as error:
            self.timer.stop(error)
            return None

    def going(self, _: Any) -> None:
        """Ask autograd to tell when all is computed. What asks later, as DistributedDataParallel does, is called later."""
        try:
            self.engine_thread = get_ident()
            self.torch.autograd.Variable._execution_engine.queue_callback(self.computed)
        except Exception as error:
            self.timer.stop(error)

    def computed(self) -> None:
        """Note that a backward pass has computed all: what comes is waiting for peers."""
        if self.is_backward:
            self.timer.mark(timing.COMPUTED)


class Waits:
    """Has waits for collectives marked."""

    def __init__(self, passes: Passes, hooks: Any, torch: Any) -> None:
        self.passes, self.hooks, self.torch = passes, hooks, torch
        self.timer = passes.timer
        self.is_waiting = False
        self.begun_in: Any = None  # the step in which it began to
        self.left_open: Any = None  # id of the work whose call has begun the wait
        self.others: set[int] = set()  # streams that collectives run on, by their id

    def install(self) -> None:
        """Wrap what waits, around what else is wrapped."""
        group_class, work_class = self.hooks.library.ProcessGroup, self.hooks.library.Work
        for name in dict.fromkeys(name for name, _, _ in load("calls").METHODS):
            if hasattr(group_class, name):
                setattr(group_class, name, self.call(getattr(group_class, name)))
        work_class.wait = self.wait(work_class.wait)
        if hasattr(self.hooks.library, "_broadcast_coalesced"):
            self.hooks.replace(self.waiting(self.hooks.library._broadcast_coalesced))
        stream_class: Any = getattr(getattr(self.torch, "cuda", None), "Stream", None)
        if hasattr(stream_class, "wait_event") and hasattr(stream_class, "record_event"):
            stream_class.wait_event = self.wait_event(stream_class.wait_event)
            stream_class.record_event = self.record_event(stream_class.record_event)

    def begin(self) -> bool:
        """Note that a wait begins; False if it is no business of ours, or part of another."""
        if not self.passes.is_ours():
            return False
        if self.is_waiting and self.begun_in is self.timer.making:
            return False
        try:
            place = self.timer.device.here()
        except Exception as error:
            self.timer.stop(error)
            return False
        if place is None:  # another stream waits
            return False
        self.is_waiting, self.left_open, self.begun_in = True, None, self.timer.making
        self.timer.mark(timing.WAIT, place)
        return True

    def end(self) -> None:
        """Note that it has ended."""
        self.is_waiting, self.left_open = False, None
        self.timer.mark(timing.WAITED)

    def was_begun(self, work: Any) -> bool:
        """Whether the call of a work has begun the wait for it."""
        return self.left_open == id(work) and self.begun_in is self.timer.making

    def close(self) -> None:
        """End a wait that nobody has ended: its step is not to be trusted."""
        if self.begun_in is self.timer.making:
            self.timer.spoil()
        self.is_waiting, self.left_open = False, None

    def call(self, original: Any) -> Any:
        """Wrap a method of ProcessGroup: one that is not asynchronous may run on the stream of the computation itself."""

        @functools.wraps(original)
        def call(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            if self.timer.making is None or not self.begin_call(args, kwargs):
                return original(process_group, *args, **kwargs)
            try:
                work = original(process_group, *args, **kwargs)
            except BaseException:
                self.end()
                raise
            if work is None:
                self.end()
            else:
                self.left_open = id(work)
            return work

        return call

    def begin_call(self, args: Any, kwargs: Any) -> bool:
        """Note that a call begins that will be waited for at once; False of others."""
        try:
            if not self.passes.is_ours():
                return False
            if self.left_open is not None:
                self.close()
            if self.timer.device.here() is None:
                self.others.add(self.torch.cuda.current_stream().stream_id)
                return False
            options = kwargs.get("opts", args[-1] if args else None)
            return not getattr(options, "asyncOp", True) and self.begin()
        except Exception as error:
            self.timer.stop(error)
            return False

    def wait(self, original: Any) -> Any:
        """Wrap Work.wait."""

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if self.timer.making is None or not (self.was_begun(work) or self.begin()):
                return original(work, *args, **kwargs)
            try:
                return original(work, *args, **kwargs)
            finally:
                self.end()

        return wait

    def waiting(self, original: Any) -> Any:
        """Wrap a function that returns when its peers have taken part."""

        @functools.wraps(original)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            if self.timer.making is None or not self.begin():
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                self.end()

        return waiting

    def wait_event(self, original: Any) -> Any:
        """Wrap Stream.wait_event: the computation may wait for a stream on which collectives run, as with FSDP."""

        @functools.wraps(original)
        def wait_event(stream: Any, event: Any) -> Any:
            if self.timer.making is None or not self.is_of_others(stream, event) or not self.begin():
                return original(stream, event)
            try:
                return original(stream, event)
            finally:
                self.end()

        return wait_event

    def record_event(self, original: Any) -> Any:
        """Wrap Stream.record_event, which tells later what an event stands for."""

        @functools.wraps(original)
        def record_event(stream: Any, event: Any = None) -> Any:
            event = original(stream, event)
            if self.others:
                self.tell_apart(stream, event)
            return event

        return record_event

    def tell_apart(self, stream: Any, event: Any) -> None:
        """Note on an event, which may be used again and again, whether it stands for collectives."""
        try:
            if stream.stream_id in self.others:
                event.of_collectives = True
            elif hasattr(event, "of_collectives"):
                del event.of_collectives
        except AttributeError:  # an event of another kind
            return

    def is_of_others(self, stream: Any, event: Any) -> bool:
        """Whether the stream of the computation is to wait for one on which collectives run."""
        try:
            return getattr(event, "of_collectives", False) and self.timer.device.is_home(stream)
        except Exception as error:
            self.timer.stop(error)
            return False
