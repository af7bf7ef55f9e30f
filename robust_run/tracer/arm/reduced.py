"""Notes, every so many steps, a checksum of what collectives have left on this rank: the same on all ranks of their group.

`hooks` puts this around what it wraps, where the launcher has made a file for it (`--check-reduced`); `sitecustomize` loads it by
its path. In the step before a check it sees which all_reduce of each group is the largest; of that one, by its place among the
step's calls, the value is added up in the moment in which the program has waited for it and has not gone on. Of
DistributedDataParallel, which reduces in C++, it is the gradient of its largest parameter when a backward pass is over.

What may differ between ranks although nothing is wrong is left out: all other calls; tensors that something has changed since
the call; works that are polled; calls that are coalesced, of other threads, in a graph that is captured, or while groups live for
the second time. A wrapper calls what it wraps exactly once, and passes result or exception on. No failure of ours reaches the
program: what fails ends the checks, and that is said once.
"""

from __future__ import annotations

import functools
import os
import weakref
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


checksum, recorder = load("checksum"), load("recorder")
ALL_REDUCE, GRADIENT = 1, 2  # kinds of values
#: Groups of which a value is noted in one step.
MOST_GROUPS = 4


def install(path: str, hooks: Any, torch: Any) -> Callable[[], None] | None:
    """Wrap what reduces and what waits for it; return what is to be called after each step, None if nothing is checked."""
    file = checksum.ReducedFile(path)
    if file.every < 1:
        return None
    checker = Checker(file, hooks, torch)
    group_class, work_class = hooks.library.ProcessGroup, hooks.library.Work
    group_class.allreduce = checker.call(group_class.allreduce)
    work_class.wait = checker.wait(work_class.wait)
    hooks.reduced[:] = [checker]
    os.register_at_fork(after_in_child=checker.leave)
    return checker.end_step


class Checker:
    """The checks of one process."""

    def __init__(self, file: Any, hooks: Any, torch: Any) -> None:
        self.file, self.hooks, self.torch = file, hooks, torch
        self.sums: Any = None
        self.steps = 0
        self.thread = 0  # that of the steps
        self.stopped = False
        self.looking = self.scouting = self.sampling = False
        self.calls: dict[int, int] = {}  # of the step under way, by index of the group
        self.largest: dict[int, tuple[int, int]] = {}  # its elements, and its place among the step's calls
        self.chosen: dict[int, int] = {}  # that place, of a step like this one
        self.pending: list[tuple[Any, ...]] = []  # calls that are waited for
        self.fetched: list[tuple[tuple[int, ...], Any]] = []  # checksums that are on their way
        self.models: list[Any] = []  # models that the next backward pass may reduce the gradients of
        self.digests: dict[int, int] = {}

    def leave(self) -> None:
        """Check nothing in this process."""
        self.stopped, self.looking, self.scouting, self.sampling = True, False, False, False
        self.pending, self.fetched, self.models = [], [], []

    def stop(self, reason: Exception) -> None:
        """Give up, and say why."""
        self.leave()
        self.file.give_up()
        give_up(reason, "checking reduced values")

    # Steps -------------------------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Note that a step is over, and what is done in the next one."""
        if self.stopped:
            return
        try:
            self.steps += 1
            if self.fetched:
                self.collect()
            if self.looking:
                self.close()
            every, ahead = self.file.every, self.steps + 1
            self.sampling = ahead % every == 0
            self.scouting = every == 1 or (ahead + 1) % every == 0
            self.looking = self.sampling or self.scouting
            self.thread = get_ident()
        except Exception as error:
            self.stop(error)

    def close(self) -> None:
        """Forget what a step has left open, and choose what is checked later."""
        if self.scouting:
            by_size = sorted(self.largest.items(), key=lambda item: item[1], reverse=True)
            self.chosen = {group: place for group, (_, place) in by_size[:MOST_GROUPS]}
        self.calls, self.largest, self.pending, self.models = {}, {}, [], []

    def collect(self) -> None:
        """Write down checksums that have come."""
        left = []
        for record, fetched in self.fetched:
            number = fetched.look()
            if number is None:
                left.append((record, fetched))
            elif self.file.claim():
                self.file.write(*record, number)
        self.fetched = left

    # all_reduce --------------------------------------------------------------------------------------------------------

    def call(self, original: Any) -> Any:
        """Wrap ProcessGroup.allreduce."""

        @functools.wraps(original)
        def allreduce(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            work = original(process_group, *args, **kwargs)
            if self.looking and work is not None:
                try:
                    self.called(process_group, args, work)
                except Exception as error:
                    self.stop(error)
            return work

        return allreduce

    def wait(self, original: Any) -> Any:
        """Wrap Work.wait."""

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            if self.pending:
                try:
                    self.waited(work, result)
                except Exception as error:
                    self.stop(error)
            return result

        return wait

    def called(self, process_group: Any, args: Any, work: Any) -> None:
        """Note a call, and that its value is to be added up."""
        known = self.hooks.known.get(id(process_group))
        if known is None or get_ident() != self.thread or not args or self.hooks.gathered or self.hooks.lives.has_ended:
            return
        group, tensors = known[1], args[0]
        if isinstance(tensors, (list, tuple)):
            if len(tensors) != 1:
                return
            tensors = tensors[0]
        if not group.index or len(group.ranks) < 2 or not hasattr(tensors, "numel"):
            return
        place = self.calls[group.index] = self.calls.get(group.index, 0) + 1
        numel = tensors.numel()
        if self.scouting and numel > self.largest.get(group.index, (0, 0))[0]:
            self.largest[group.index] = numel, place
        if not self.sampling:
            return
        self.drop_changed(tensors)
        if self.chosen.get(group.index) != place or not self.adds_up(tensors):
            return
        seq = self.number_of(group, numel)
        if seq is not None:
            value = weakref.ref(tensors), tensors._version
            key = ALL_REDUCE, self.digest(process_group, group), len(group.ranks), seq
            self.pending.append((weakref.ref(work), *value, *key))

    def drop_changed(self, tensor: Any) -> None:
        """Leave calls out whose tensor is reduced again before it was waited for."""
        if self.pending:
            alive = [each for each in self.pending if each[1]() is not None]
            memory = tensor.untyped_storage().data_ptr()
            self.pending = [each for each in alive if each[1]().untyped_storage().data_ptr() != memory]

    def adds_up(self, tensor: Any) -> bool:
        """Whether a value can be added up."""
        if self.sums is None:
            self.sums = checksum.Sums(self.torch)
        return bool(self.sums.can(tensor))

    def number_of(self, group: Any, numel: int) -> int | None:
        """Return the number that the recorder has just given to a call of ours; None where it is not that of the newest slot."""
        ring = self.hooks.ring
        head = ring.cells[recorder.HEAD_CELL]
        if ring.stopped or not head:
            return None
        at = recorder.SLOTS_AT + ((head - 1) & recorder.SLOT_MASK) * recorder.SLOT_BYTES
        slot = recorder.struct.unpack_from(recorder.SLOT_FORMAT, ring.octets, at)
        elements, seq, in_group, thread, op, last = slot[3], slot[4], slot[7], slot[8], slot[9], slot[-1]
        ours = ring.threads.get(get_ident())
        same = (op, in_group, elements, thread) == (self.hooks.op_codes["all_reduce"], group.index, numel, ours)
        return int(seq) if same and last == head else None

    def digest(self, process_group: Any, group: Any) -> int:
        """Return a number for a group that all of its ranks have for it, and no other group."""
        found = self.digests.get(group.index)
        if found is None:
            from hashlib import blake2b

            words = f"{process_group.group_name} {','.join(map(str, group.ranks))}"
            found = int.from_bytes(blake2b(words.encode(errors="replace"), digest_size=8).digest(), "little")
            self.digests[group.index] = found
        return found

    def waited(self, work: Any, result: Any) -> None:
        """Add up the value that a work stands for; the program has waited for it and has not gone on."""
        for each in self.pending:
            if each[0]() is work:
                self.pending.remove(each)
                tensor = each[1]()
                is_as_it_was = tensor is not None and tensor._version == each[2] and get_ident() == self.thread
                if is_as_it_was and result is not False and self.sums.can(tensor):
                    self.note(tensor, *each[3:])
                return

    def note(self, tensor: Any, kind: int, digest: int, size: int, seq: int) -> None:
        """Have a value added up and written down."""
        sums = self.sums
        start, length = sums.window(tensor.numel(), seq)
        code = sums.codes[tensor.dtype]
        record = digest, size, seq, kind, tensor.numel(), code, start, length, self.steps
        self.fetched.append((record, sums.fetch(sums.add_up(tensor, start, length))))
        if tensor.device.type == "cpu":
            self.collect()

    # DistributedDataParallel -------------------------------------------------------------------------------------------

    def prepared(self, model: Any) -> None:
        """Note that the next backward pass will reduce the gradients of a model. `backward` calls this."""
        if self.sampling and get_ident() == self.thread:
            try:
                self.models.append(weakref.ref(model))
            except Exception as error:
                self.stop(error)

    def passed(self) -> None:
        """Add up a gradient: a backward pass is over, and was not part of another. `backward` calls this."""
        models, self.models = self.models, []
        if len(models) != 1 or not self.sampling or get_ident() != self.thread:  # of several it is not known which
            return
        try:
            self.gradient_of(models[0]())
        except Exception as error:
            self.stop(error)

    def gradient_of(self, model: Any) -> None:
        """Note the gradient of the largest parameter of a model whose gradients are all reduced, and in no way of its own."""
        process_group = getattr(model, "process_group", None)
        known = self.hooks.known.get(id(process_group))
        if process_group is None or known is None or self.hooks.lives.has_ended:
            return
        own_way = getattr(model, "_comm_hooks", True) or getattr(model, "_delay_all_reduce_params", ())
        may_be_left = getattr(model, "find_unused_parameters", True) or getattr(model, "static_graph", True)
        group = known[1]
        if own_way or may_be_left or not group.index or len(group.ranks) < 2:
            return
        ignored = getattr(model, "parameters_to_ignore", ())
        named = model.module.named_parameters()
        ours = [each for name, each in named if each.grad is not None and name not in ignored]
        seq = group.turns.get((self.hooks.op_codes["ddp_backward"], -1, 0), 0)
        if not ours or not seq:
            return
        gradient = max(ours, key=lambda each: each.numel()).grad
        if self.adds_up(gradient):
            self.note(gradient, GRADIENT, self.digest(process_group, group), len(group.ranks), seq)
