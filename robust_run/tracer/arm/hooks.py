"""Makes torch.distributed tell the recorder what it does: wraps the methods of process groups and what else waits for peers.

`sitecustomize` loads this file by its path. A wrapper calls what it wraps exactly once, with the same
arguments, and passes result or exception on; a mistake of ours ends the recording, never the call. Nothing here holds on
to a group, a work or a tensor.

What torch starts in C++ alone is seen in part: the waits of DistributedDataParallel as one operation for each backward pass
(`backward`), its first buckets and functional collectives, as DTensor uses them, by their waits only.
"""

from __future__ import annotations

import functools
import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Describe = Callable[[Any], tuple[int, Any, int]]

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one; `sitecustomize` puts it here."""
        ...


calls, lifecycle, limits, recorder = load("calls"), load("lifecycle"), load("limits"), load("recorder")
ENTERED, ISSUED, WAITING, DONE, FAILED = range(5)


class Hooks:
    """All that is wrapped in one process."""

    def __init__(self, ring: Any, distributed: Any, library: Any, served: Callable[[], None]) -> None:
        """`distributed` is `torch.distributed.distributed_c10d`, `library` torch's C++ beneath it.

        `served` runs once, after the first group was made.
        """
        self.ring = ring
        self.distributed = distributed
        self.library = library
        self.links = recorder.WorkCalls()
        self.op_codes = {name: code for code, name in enumerate(recorder.OPS)}
        self.first_p2p, self.last_p2p = self.op_codes["send"], self.op_codes["recv_any"]
        self.dtype_codes: dict[Any, int] = {None: 0}
        self.known: dict[int, tuple[Any, Any]] = {}  # by id of a process group: a weak reference to it, its Group
        self.gathered: dict[int, list[int]] = {}  # by id of a process group: the calls since _start_coalescing
        self.late_done = False
        self.timed: list[Any] = []  # `phases` puts there what `backward` is to tell of its passes
        self.reduced: list[Any] = []  # and `reduced` what checks the gradients that they leave
        self.lives = lifecycle.Lives(self, served)
        ring.table.living = lambda: {group.index for _, group in list(self.known.values())}

    def install(self) -> None:
        """Wrap what exists as soon as torch.distributed does."""
        group_class, work_class = self.library.ProcessGroup, self.library.Work
        for name, op, describe in calls.METHODS:
            if hasattr(group_class, name):
                setattr(group_class, name, self.call(getattr(group_class, name), self.op_codes[op], describe))
        if hasattr(group_class, "monitored_barrier"):
            name = "monitored_barrier"
            setattr(group_class, name, self.blocking(group_class.monitored_barrier, name, calls.meets))
        limits.Notes(self).install(group_class)
        if hasattr(group_class, "_end_coalescing"):
            group_class._start_coalescing = self.start_coalescing(group_class._start_coalescing)
            group_class._end_coalescing = self.end_coalescing(group_class._end_coalescing)
        work_class.wait = self.wait(work_class.wait)
        work_class.is_completed = self.is_completed(work_class.is_completed)
        for name in ("init_process_group", "new_group", "destroy_process_group"):
            self.replace(self.lives.lifecycle(getattr(self.distributed, name), name))
        functional = sys.modules.get("torch.distributed._functional_collectives")
        if hasattr(functional, "wait_tensor"):
            self.install_functional(functional)
        if self.distributed.is_initialized():
            self.install_late()

    def install_late(self) -> None:
        """Wrap what needs all of torch to be imported; once, when the first group is made."""
        if self.late_done:
            return
        self.late_done = True
        torch = sys.modules["torch"]
        lifecycle.watch_rpc(self.ring, sys.modules.get("torch.distributed.rpc.api"))
        reducer, passes = self.library.Reducer, load("backward").Passes(self, torch.compiler.is_dynamo_compiling)
        torch.autograd.backward = passes.backward(torch.autograd.backward)
        reducer.prepare_for_backward = passes.prepare(reducer.prepare_for_backward)
        if hasattr(reducer, "_rebuild_buckets"):
            reducer._rebuild_buckets = self.unrecorded(reducer._rebuild_buckets)
        for name, op in (("_broadcast_coalesced", "broadcast"), ("_verify_params_across_processes", "all_gather")):
            if hasattr(self.library, name):
                self.replace(self.blocking(getattr(self.library, name), op, lambda _: (-1, None, -1)))

    def install_functional(self, module: Any) -> None:
        """Wrap the wait of functional collectives, in the freshly executed module that has it."""
        is_compiling = sys.modules["torch"].compiler.is_dynamo_compiling
        original = module.wait_tensor

        @functools.wraps(original)
        def wait_tensor(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            return self.waiting(-1, original, args, kwargs)

        module.wait_tensor = wait_tensor

    def replace(self, new: Any) -> None:
        """Put a function in the place of the one it wraps, in all modules of torch.distributed that have taken that over."""
        old = new.__wrapped__
        modules = [module for name, module in list(sys.modules.items()) if name.startswith("torch.distributed")]
        for module in (self.library, self.distributed, *modules):
            for alias, value in list(getattr(module, "__dict__", {}).items()):
                if value is old:
                    setattr(module, alias, new)

    # From torch's words to ours ----------------------------------------------------------------------------------------

    def group_of(self, process_group: Any) -> Any:
        """Return our Group for a process group."""
        known = self.known.get(
            id(process_group)
        )  # a group that dies takes its entry along, before its id is used again
        if known is not None:
            return known[1]
        ranks = self.distributed._world.pg_group_ranks.get(process_group)
        members: Sequence[int] = sorted(ranks, key=ranks.get) if ranks else ()
        desc = str(getattr(process_group, "group_desc", ""))
        group = self.ring.table.group(str(process_group.group_name), "" if desc == "undefined" else desc, members)
        if ranks:  # a group that is not registered yet may get its ranks still
            key = id(process_group)
            self.known[key] = weakref.ref(process_group, lambda _: self.lives.gone(key)), group
            self.ring.table.limit(group, limits.of_group(process_group))
            backends = calls.backends_of(self.distributed, process_group)
            group.has_tags = calls.meets_by_tag(backends)
            self.ring.table.backends(group, backends)
            # What calls itself rank 0 of another world, or of a service with us, is not the launcher's rank 0.
            own = process_group.rank() if hasattr(process_group, "rank") else -1
            if (own >= 0 and members[own] != self.ring.rank) or max(members) >= self.ring.world_size:
                self.ring.doubt(recorder.FOREIGN)
        return group

    def begin(self, process_group: Any, op: int, describe: Describe, arguments: Any, state: int = ENTERED) -> int:
        """Note that a call begins; return its number."""
        ring = self.ring
        if ring.stopped:
            ring.speak_up()
            return -1
        try:
            known = self.known.get(id(process_group))
            group = known[1] if known is not None else self.group_of(process_group)
            try:
                numel, dtype, peer = describe(arguments)
            except Exception:  # torch will say what is wrong with these arguments
                numel, dtype, peer = -1, None, -1
            code = self.dtype_codes.get(dtype)
            if code is None:
                code = self.dtype_code(dtype)
            if peer >= 0:
                peer = group.global_rank(peer)
            tag = 0
            if self.first_p2p <= op <= self.last_p2p:
                tag = calls.tag_of(arguments) if group.has_tags else 0
                seq = group.next_turn(op, peer, tag)
            else:
                seq = group.next_number()
            return ring.enter(group, op, numel, code, peer, seq, state, tag)  # type: ignore[no-any-return]
        except Exception as error:
            ring.stop(error)
            return -1

    def dtype_code(self, dtype: Any) -> int:
        """Return the code of a dtype that has not been seen."""
        name = str(dtype).rpartition(".")[2]
        names = recorder.DTYPES
        self.dtype_codes[dtype] = code = names.index(name) if name in names else 0
        return code

    def issued(self, index: int, process_group: Any, work: Any) -> None:
        """Note that a call returned, and what will be waited for."""
        try:
            if work is not None:
                self.links.put(work, index)
            if self.gathered:
                calls.gather(self.gathered, id(process_group), index)
            self.ring.set_state(index, ISSUED if work is not None or self.gathered else DONE)
        except Exception as error:
            self.ring.stop(error)

    # Wrappers ------------------------------------------------------------------------------------------------------------

    def call(self, original: Any, op: int, describe: Describe) -> Any:
        """Wrap a method of ProcessGroup that returns a Work."""
        begin, issued, set_state = self.begin, self.issued, self.ring.set_state

        @functools.wraps(original)
        def call(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            index = begin(process_group, op, describe, args)
            try:
                work = original(process_group, *args, **kwargs)
            except BaseException:
                set_state(index, FAILED)
                raise
            if index >= 0:
                issued(index, process_group, work)
            return work

        return call

    def waiting(self, linked: Any, original: Any, args: Any, kwargs: Any) -> Any:
        """Call something that blocks until peers have done their part, for the calls that are `linked` to it."""
        state = FAILED
        try:
            self.ring.begin_wait(linked)
            result = original(*args, **kwargs)
            state = DONE
        finally:
            self.ring.end_wait(linked, state)
        return result

    def wait(self, original: Any) -> Any:
        """Wrap Work.wait."""
        pop, begin_wait, end_wait = self.links.pop, self.ring.begin_wait, self.ring.end_wait
        limited = limits.Notes(self).note_wait

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            linked, state = pop(id(work), -1), FAILED
            if args or kwargs:
                limited(args, kwargs)
            try:
                begin_wait(linked)
                result = original(work, *args, **kwargs)
                state = DONE
            finally:
                end_wait(linked, state)
            return result

        return wait

    def is_completed(self, original: Any) -> Any:
        """Wrap Work.is_completed: a program may poll instead of waiting."""

        @functools.wraps(original)
        def is_completed(work: Any) -> Any:
            completed = original(work)
            if completed and id(work) in self.links:
                self.ring.set_state(self.links.pop(id(work), -1), DONE)
            return completed

        return is_completed

    def blocking(self, original: Any, op: str, describe: Describe) -> Any:
        """Wrap what takes a process group first and returns when its peers have taken part."""
        code = self.op_codes[op]

        @functools.wraps(original)
        def blocking(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            index = self.begin(process_group, code, describe, args, WAITING)
            return self.waiting(index, original, (process_group, *args), kwargs)

        return blocking

    def unrecorded(self, original: Any) -> Any:
        """Wrap what may wait for peers without being a call that can be numbered."""

        @functools.wraps(original)
        def unrecorded(*args: Any, **kwargs: Any) -> Any:
            return self.waiting(-1, original, args, kwargs)

        return unrecorded

    def start_coalescing(self, original: Any) -> Any:
        """Wrap _start_coalescing: the calls up to _end_coalescing become one work."""

        @functools.wraps(original)
        def start_coalescing(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            self.gathered[id(process_group)] = []
            return original(process_group, *args, **kwargs)

        return start_coalescing

    def end_coalescing(self, original: Any) -> Any:
        """Wrap _end_coalescing, which returns that work."""

        @functools.wraps(original)
        def end_coalescing(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            gathered = self.gathered.pop(id(process_group), [])
            work = original(process_group, *args, **kwargs)
            if work is not None and gathered:
                self.links.put(work, gathered)
            return work

        return end_coalescing
