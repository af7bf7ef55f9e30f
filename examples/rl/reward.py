"""The role that verifies responses: by a rule, so that nobody can talk it into a reward."""

from __future__ import annotations

import msgspec
import task
from samples import Group, group_of, packed

from robust_run import roles

AT_ONCE = 32


def verified(group: Group) -> Group:
    """Return a group with what is right in it."""
    right = tuple(task.is_right(group.text, task.decode(list(each.tokens))) for each in group.responses)
    return msgspec.structs.replace(group, right=right)


def main() -> None:
    """Verify until the job is over: it ends this process."""
    samples, scored = roles.queue("samples"), roles.queue("scored")
    roles.ready()
    while True:
        items = samples.take(AT_ONCE)
        for item in items:
            scored.put(packed(verified(group_of(item.payload))), generation=item.generation, key=item.key)
        samples.done(*items)
