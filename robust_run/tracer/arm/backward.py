"""Makes backward passes of DistributedDataParallel tell the recorder that they wait for peers: torch communicates in C++ there.

`hooks` loads this file by its path. A wrapper calls what it wraps exactly once, with the same arguments, and passes result or
exception on; a mistake of ours ends the recording, never the call.
"""

from __future__ import annotations

import functools
import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PENDING_BACKWARDS = 64
WAITING = 2  # as `hooks` has it


class Passes:
    """Forward passes whose backward pass will communicate."""

    def __init__(self, hooks: Any, is_compiling: Callable[[], bool]) -> None:
        self.hooks = hooks
        self.is_compiling = is_compiling
        self.pending: dict[int, tuple[Any, Any]] = {}  # by id of the reducer, the newest last
        self.timed: list[Any] = hooks.timed  # what is told of backward passes that are timed: `phases` puts itself here
        self.reduced: list[Any] = hooks.reduced  # likewise `reduced`, where gradients are checked
        self.depth = 0  # of such passes within each other

    def prepare(self, original: Any) -> Any:
        """Wrap Reducer.prepare_for_backward, which a forward pass calls when its backward pass will communicate."""
        is_compiling = self.is_compiling

        def note(reducer: Any) -> None:
            try:
                caller = sys._getframe(2).f_locals.get("self")
                process_group = getattr(caller, "process_group", None)
                if process_group is not None and not self.hooks.ring.stopped:
                    self.pending.pop(id(reducer), None)
                    if len(self.pending) < PENDING_BACKWARDS:
                        self.pending[id(reducer)] = weakref.ref(process_group), None
                    if self.reduced:
                        self.reduced[0].prepared(caller)
            except Exception as error:
                self.hooks.ring.stop(error)

        @functools.wraps(original)
        def prepare_for_backward(reducer: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                note(reducer)
            return original(reducer, *args, **kwargs)

        return prepare_for_backward

    def backward(self, original: Any) -> Any:
        """Wrap torch.autograd.backward: one that ends a communicating forward pass waits for peers all along."""
        pending, is_compiling, timed = self.pending, self.is_compiling, self.timed

        def recorded(args: Any, kwargs: Any) -> Any:
            if not pending:
                return original(*args, **kwargs)
            index = self.begin_backward()
            self.depth += 1
            try:
                result = self.hooks.waiting(index, original, args, kwargs)
            finally:
                self.depth -= 1
            if self.reduced and not self.depth and not pending:
                self.reduced[0].passed()
            return result

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            if not timed:
                return recorded(args, kwargs)
            timer = timed[0]
            begun = timer.begin(args, kwargs)
            try:
                return recorded(args, kwargs)
            finally:
                timer.end(begun)

        return backward

    def begin_backward(self) -> int:
        """Note the backward pass that belongs to the newest forward pass."""
        try:
            process_group = self.pending.popitem()[1][0]()
            if process_group is None or self.hooks.ring.stopped:
                return -1
            group = self.hooks.group_of(process_group)
            seq = group.next_turn(self.hooks.op_codes["ddp_backward"], -1)
            return int(self.hooks.ring.enter(group, self.hooks.op_codes["ddp_backward"], -1, 0, -1, seq, WAITING))
        except Exception as error:
            self.hooks.ring.stop(error)
            return -1
