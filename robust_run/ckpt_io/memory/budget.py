"""How much memory the buffers of a node may take. Pure.

What the kernel says is available, what each cgroup leaves, and what people allow: the least of them, less a margin; and half of
what is free where people have said nothing.
"""

from __future__ import annotations

import msgspec

_GIB = 1 << 30
#: Left alone, of the node and of each cgroup: this part of it, and at least so much. Workers grow after their first save.
MARGIN_SHARE = 0.05
LEAST_MARGIN_BYTES = 256 << 20
#: Of what is free, where people have said nothing: workers grow after their first save, and the kernel kills the largest process.
UNASKED_SHARE = 0.5


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A cgroup that limits memory."""

    name: str
    """The file that says so, for people."""
    limit_bytes: int
    used_bytes: int
    reclaimable_bytes: int = 0
    """Of what is used: files that the kernel gives up before it kills."""


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says about a node's memory."""

    total_bytes: int | None = None
    """None: it does not say."""
    available_bytes: int | None = None
    groups: tuple[GroupFacts, ...] = ()


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How much more may be taken, and what sets the limit, for people."""

    bytes: int | None
    """None: nothing is known that limits it."""
    because: str


def room(facts: MemoryFacts, limit_bytes: int | None, taken_bytes: int, promised_bytes: int = 0) -> Room:
    """Return how much more buffers may take.

    Args:
        facts: As the kernel says now.
        limit_bytes: What people allow for all buffers; None: nothing was said.
        taken_bytes: By buffers so far.
        promised_bytes: To buffers, and not taken yet: the kernel does not count them.
    """
    found: list[tuple[int, str]] = []
    if limit_bytes is not None:
        found.append((limit_bytes - taken_bytes - promised_bytes, f"--ckpt-memory allows {gib(limit_bytes)}"))

    def free(free_bytes: int, of_bytes: int, because: str) -> None:
        """Note what is free somewhere; what buffers have taken is not."""
        if limit_bytes is None:
            half_bytes = int((free_bytes + taken_bytes) * UNASKED_SHARE)
            found.append(
                (half_bytes - taken_bytes - promised_bytes, f"{because}; half of it, unless --ckpt-memory SIZE asks")
            )
        else:
            margin_bytes = _margin(of_bytes)
            found.append((free_bytes - margin_bytes - promised_bytes, f"{because}, {_stays(margin_bytes)}"))

    if facts.available_bytes is not None:
        free(facts.available_bytes, facts.total_bytes or 0, f"the node has {gib(facts.available_bytes)} available")
    for group in facts.groups:
        free_bytes = max(0, group.limit_bytes - max(0, group.used_bytes - group.reclaimable_bytes))
        free(free_bytes, group.limit_bytes, f"{group.name} leaves {gib(free_bytes)} of {gib(group.limit_bytes)}")
    if not found:
        return Room(bytes=None, because="nothing is known about the memory of this node")
    least_bytes, because = min(found)
    return Room(bytes=max(0, least_bytes), because=because)


def most_buffers(found: Room, size_bytes: int, wanted: int) -> int:
    """Return how many of so many buffers there is room for."""
    return wanted if found.bytes is None else min(wanted, found.bytes // size_bytes)


def refusal(found: Room, rank: int, wanted: int, size_bytes: int, taken_bytes: int) -> str:
    """Say for people why there are no buffers."""
    held = f", {gib(taken_bytes)} are taken" if taken_bytes else ""
    return (
        f"too little memory for checkpoints of rank {rank}: {wanted} buffers of {gib(size_bytes)} are needed, "
        f"{gib(found.bytes or 0)} may be used ({found.because}{held}); give the job more memory, or save fewer tensors"
    )


def gib(size_bytes: int) -> str:
    """Write a size for people."""
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB // 10 else f"{size_bytes / (1 << 20):.1f} MiB"


def rounded(size_bytes: int) -> int:
    """Return the size of a buffer for a part of this size: parts differ by some bytes from step to step."""
    return -(-(size_bytes + size_bytes // 64 + (64 << 10)) // (1 << 20)) * (1 << 20)


def _margin(total_bytes: int) -> int:
    return max(LEAST_MARGIN_BYTES, int(total_bytes * MARGIN_SHARE))


def _stays(margin_bytes: int) -> str:
    return f"{gib(margin_bytes)} of which stay free"
