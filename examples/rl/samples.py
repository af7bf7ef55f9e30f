"""What goes through the queues of the job: prompts, responses to them, these with rewards. Msgpack: no code in it."""

from __future__ import annotations

import msgspec

ANY_VERSION = -1


class Prompt(msgspec.Struct, frozen=True, array_like=True):
    """A problem that is to be tried `group` times."""

    number: int
    seed: int
    group: int
    version: int = ANY_VERSION
    """Of the policy that must respond; ANY_VERSION: the newest there is."""


class Response(msgspec.Struct, frozen=True, array_like=True):
    """One try: its tokens, its end too where it has one, and the log-probabilities they were drawn with."""

    tokens: tuple[int, ...]
    logs: tuple[float, ...]


class Group(msgspec.Struct, frozen=True, array_like=True):
    """All tries at one problem."""

    number: int
    version: int
    text: str
    responses: tuple[Response, ...]
    right: tuple[bool, ...] = ()
    """Of each response; empty until somebody has verified them."""

    @property
    def tokens(self) -> int:
        """How many were generated."""
        return sum(len(each.tokens) for each in self.responses)


_encoder = msgspec.msgpack.Encoder()
_prompts = msgspec.msgpack.Decoder(Prompt)
_groups = msgspec.msgpack.Decoder(Group)


def packed(what: Prompt | Group) -> bytes:
    """Return it as bytes."""
    return _encoder.encode(what)


def prompt_of(data: bytes) -> Prompt:
    """Return what was packed. Raises msgspec.MsgspecError."""
    return _prompts.decode(data)


def group_of(data: bytes) -> Group:
    """Return what was packed. Raises msgspec.MsgspecError."""
    return _groups.decode(data)
