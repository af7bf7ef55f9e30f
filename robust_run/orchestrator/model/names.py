"""Names of members. No behaviour."""

from __future__ import annotations

import msgspec


class MemberName(msgspec.Struct, frozen=True, order=True):
    """`rollout/3`."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}/{self.index}"
