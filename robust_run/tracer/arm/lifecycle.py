"""Lives of process groups: the calls that every rank makes to make groups or to end them; and the beginning of RPC.

`hooks` loads this file by its path. A wrapper calls what it wraps exactly once, with the same arguments, and passes result or
exception on; a mistake of ours ends the recording, never the call.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one; `sitecustomize` puts it here."""
        ...


limits, recorder = load("limits"), load("recorder")
WAITING = 2  # as `hooks` has it


class Lives:
    """What is known of the groups' beginning and end."""

    def __init__(self, hooks: Any, served: Callable[[], None]) -> None:
        """`served` runs once, after the first group was made."""
        self.hooks = hooks
        self.served = served
        self.inside_lifecycle = False
        self.has_ended = False

    def lifecycle(self, original: Any, name: str) -> Any:
        """Wrap a function that every rank must call, to make groups or to end them."""
        code = self.hooks.op_codes[name]

        @functools.wraps(original)
        def lifecycle(*args: Any, **kwargs: Any) -> Any:
            index = self.begin_lifecycle(name, code, args, kwargs)
            if index < 0:
                return original(*args, **kwargs)
            try:
                result = self.hooks.waiting(index, original, args, kwargs)
            finally:
                self.inside_lifecycle = False
            self.after_lifecycle(name, result)
            return result

        return lifecycle

    def begin_lifecycle(self, name: str, code: int, args: Any, kwargs: Any) -> int:
        """Note that such a call begins; -1 if it is part of another, or is no matter of all ranks."""
        try:
            if self.hooks.ring.stopped:
                self.hooks.ring.speak_up()
            if name == "init_process_group":
                self.hooks.install_late()
            if self.inside_lifecycle or self.hooks.ring.stopped or not self.concerns_all(name, args, kwargs):
                return -1
            self.inside_lifecycle = True
            world = self.hooks.ring.world()
            limit_ms = limits.of_lifecycle(name, args, kwargs)
            if limit_ms > (world.limit_ms or limits.DEFAULT_MS):
                self.hooks.ring.table.limit(world, limit_ms)
            return int(self.hooks.ring.enter(world, code, 0, 0, -1, world.next_number(), WAITING))
        except Exception as error:
            self.inside_lifecycle = False
            self.hooks.ring.stop(error)
            return -1

    def gone(self, key: int) -> None:
        """Forget a process group that has died, and of what is known of it what may be much: its ranks."""
        groups = self.hooks.known
        known = groups.pop(key, None)
        if known is not None and all(group is not known[1] for _, group in list(groups.values())):
            known[1].ranks = ()

    def concerns_all(self, name: str, args: Any, kwargs: Any) -> bool:
        """Say whether all ranks make this call; some groups are made and ended by their members alone."""
        if name == "new_group":
            return not kwargs.get("use_local_synchronization", args[4] if len(args) > 4 else False)
        if name == "destroy_process_group":
            group = kwargs.get("group", args[0] if args else None)
            return group is None or group is self.hooks.distributed.GroupMember.WORLD
        return True

    def after_lifecycle(self, name: str, made: Any) -> None:
        """Note the group that was made, also if it is never used, and start the second witness, once."""
        try:
            if self.hooks.ring.stopped:
                return
            if name == "destroy_process_group":
                self.has_ended = True
                return
            if name == "init_process_group":
                made = self.hooks.distributed.GroupMember.WORLD
                if self.has_ended:
                    self.hooks.ring.doubt(recorder.REBORN)
                served, self.served = self.served, lambda: None
                served()
            if hasattr(made, "group_name"):
                self.hooks.group_of(made)
        except Exception as error:
            self.hooks.ring.stop(error)


def watch_rpc(ring: Any, api: Any) -> None:
    """Note that others may have this process make calls: torch's RPC runs their functions in threads that no stack shows."""
    original = getattr(api, "_init_rpc_states", None)
    if original is None:
        return
    if api._is_current_rpc_agent_set():
        ring.doubt(recorder.SERVING)

    @functools.wraps(original)
    def init_rpc_states(*args: Any, **kwargs: Any) -> Any:
        try:
            ring.doubt(recorder.SERVING)
        except Exception as error:
            ring.stop(error)
        return original(*args, **kwargs)

    api._init_rpc_states = init_rpc_states
