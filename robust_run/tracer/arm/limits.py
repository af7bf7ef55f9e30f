"""How long torch lets a communication call take before it aborts the program: timeouts of process groups and of single calls.

`sitecustomize` loads this file by its path. The launcher waits for a rank no less than torch does, so where two limits may
apply, the longer one is meant, but for a short one of a call that blocks, while it does; what cannot be read is 0, not known.
What changes a limit is wrapped, as `hooks` wraps calls.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Note = Callable[[Any, Any], None]

LONGEST_MS = 9_999_999_999  # what fits the ring's table
LIMITED = 2  # as `recorder` has it
SHORT_MS = 300_000  # what is shorter is acted on after it has ended; else before, and the program may catch that end
DEFAULT_MS = 1_800_000  # torch's own for gloo, taken by readers where a group's is not known


def milliseconds(timeout: Any) -> int:
    """Return a timedelta as a limit; 0 for what is none, as the negative ones that torch takes for "not given"."""
    seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else 0.0
    return min(int(seconds * 1000), LONGEST_MS) if seconds > 0 else 0


def of_group(process_group: Any) -> int:
    """Return the longest timeout of a group's backends; 0 if that of one of them cannot be read."""
    longest = 0
    try:
        for device in process_group._device_types:
            backend = process_group._get_backend(device)
            backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            limit = milliseconds(getattr(getattr(backend, "options", None), "_timeout", None))
            if limit == 0:
                return 0
            longest = max(longest, limit)
    except Exception:  # another torch, a foreign backend
        return 0
    return longest


def of_barrier(arguments: Any, named: Any) -> int:
    """Return the timeout that a barrier was given, in its options or by itself; 0 without one."""
    given = named.get("opts", named.get("timeout", arguments[0] if arguments else None))
    return milliseconds(getattr(given, "timeout", given))


def of_lifecycle(name: str, arguments: Any, named: Any) -> int:
    """Return the timeout that a call was given which makes a group of all ranks; 0 without one."""
    at = {"init_process_group": 2, "new_group": 1}.get(name, len(arguments))
    return milliseconds(named.get("timeout", arguments[at] if at < len(arguments) else None))


class Notes:
    """Writes down in a ring how long torch lets the calls of a process take."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks

    def install(self, group_class: Any) -> None:
        """Wrap what changes how long torch lets calls take: for a group, for its next calls, for one barrier."""
        for name in ("barrier", "monitored_barrier"):
            if hasattr(group_class, name):
                setattr(group_class, name, self.noting(getattr(group_class, name), before=self.note_barrier))
        if hasattr(group_class, "monitored_barrier"):
            group_class.monitored_barrier = self.holding(group_class.monitored_barrier)
        if hasattr(group_class, "set_timeout"):
            group_class.set_timeout = self.noting(group_class.set_timeout, after=self.note_limits)
        for name, note in (
            ("_set_pg_timeout", self.note_limits),
            ("_add_ephemeral_timeout_for_all_pgs", self.note_extension),
        ):
            if hasattr(self.hooks.distributed, name):
                self.hooks.replace(self.noting(getattr(self.hooks.distributed, name), after=note))

    def noting(self, original: Any, *, before: Note | None = None, after: Note | None = None) -> Any:
        """Wrap a call whose arguments, or what it has changed, are to be written down."""

        def noted(note: Note | None, args: Any, kwargs: Any) -> None:
            try:
                if note is not None and not self.hooks.ring.stopped:
                    note(args, kwargs)
            except Exception as error:
                self.hooks.ring.stop(error)

        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            noted(before, args, kwargs)
            result = original(*args, **kwargs)
            noted(after, args, kwargs)
            return result

        return noting

    def holding(self, original: Any) -> Any:
        """Wrap a barrier that returns when it is over: a short limit of its own is that of its group while it lasts."""

        @functools.wraps(original)
        def holding(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            held = self.hold(process_group, args, kwargs)
            try:
                return original(process_group, *args, **kwargs)
            finally:
                if held is not None:
                    self.let_go(held)

        return holding

    def hold(self, process_group: Any, args: Any, kwargs: Any) -> Any:
        """Note a short limit of a call that begins, and return its group; None if there is none, or no room for it."""
        try:
            limit_ms = of_barrier(args, kwargs)
            if self.hooks.ring.stopped or not 0 < limit_ms < SHORT_MS:
                return None
            group = self.hooks.group_of(process_group)
            is_shorter = limit_ms < (group.limit_ms or DEFAULT_MS)
            return group if is_shorter and self.hooks.ring.table.hold(group, limit_ms) else None
        except Exception as error:
            self.hooks.ring.stop(error)
            return None

    def let_go(self, group: Any) -> None:
        """Note that such a call is over: its group has the limit that it had."""
        try:
            if not self.hooks.ring.stopped:
                self.hooks.ring.table.hold(group, 0)
        except Exception as error:
            self.hooks.ring.stop(error)

    def note_limits(self, _: Any, __: Any, extra_ms: int = 0) -> None:
        """Note the limits of all groups as they are now, and what is added to those for a time."""
        for reference, group in list(self.hooks.known.values()):
            process_group = reference()
            limit_ms = of_group(process_group) if process_group is not None else 0
            if limit_ms:
                self.hooks.ring.table.limit(group, min(limit_ms + extra_ms, LONGEST_MS))

    def note_extension(self, args: Any, kwargs: Any) -> None:
        """Note that all groups have more time for their next calls; when that is over cannot be seen."""
        self.note_limits((), {}, milliseconds(kwargs.get("timeout", args[0] if args else None)))

    def note_wait(self, args: Any, kwargs: Any) -> None:
        """Note that a wait ends by itself, sooner than its group's: the program is ready for it."""
        try:
            if milliseconds(kwargs.get("timeout", args[0] if args else None)):
                self.hooks.ring.doubt(LIMITED)
        except Exception as error:
            self.hooks.ring.stop(error)

    def note_barrier(self, args: Any, kwargs: Any) -> None:
        """Note the limit that a barrier was given, if its group's is shorter: it is that of the group from then on.

        A shorter one is no limit of other calls, and only of this one while it lasts (`hold`).
        """
        limit_ms = of_barrier(args[1:], kwargs)
        if limit_ms:
            group = self.hooks.group_of(args[0])
            if limit_ms > (group.limit_ms or DEFAULT_MS):
                self.hooks.ring.table.limit(group, limit_ms)
            elif limit_ms < (group.limit_ms or DEFAULT_MS):
                self.hooks.ring.doubt(LIMITED)
