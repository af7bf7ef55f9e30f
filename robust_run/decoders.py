"""Decoders of Structs for code that may run in several threads.

msgspec (0.22) makes what it knows of a Struct when that is first decoded. A second thread that decodes the same Struct meanwhile,
or one that has it as a field, uses what is half made, and the process ends with SIGSEGV. Here they are made by one thread at a
time, and once. Who decodes in one thread only, before there are others, needs none of this.
"""

from __future__ import annotations

import threading
from types import UnionType
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_making = threading.RLock()
_made: dict[tuple[str, Any, bool], Any] = {}


@overload
def json_decoder(kind: type[T], *, strict: bool = True) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: UnionType, *, strict: bool = True) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any, *, strict: bool = True) -> Any:
    """Return what decodes JSON to this type, a Struct, a union or a collection of them. `strict`: as of msgspec."""
    return _decoder("json", msgspec.json.Decoder, kind, strict)


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Return what decodes MessagePack to this type."""
    return _decoder("msgpack", msgspec.msgpack.Decoder, kind, True)  # type: ignore[no-any-return]


def _decoder(form: str, maker: Any, kind: Any, strict: bool) -> Any:
    key = (form, kind, strict)
    found = _made.get(key)
    if found is None:
        with _making:
            found = _made.get(key)
            if found is None:
                found = _made[key] = maker(kind, strict=strict)
    return found
