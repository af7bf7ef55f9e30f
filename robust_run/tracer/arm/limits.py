"""How long torch lets a communication call take before it aborts the program: timeouts of process groups and of single calls.

`sitecustomize` loads this file by its path. The launcher waits for a rank no less than torch does, so where two limits may
apply, the longer one is meant; what cannot be read is 0, not known. Nothing here makes or changes anything of torch's.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST_MS = 9_999_999_999  # what fits the ring's table
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
    except Exception:  # another torch, a backend of somebody else's
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
