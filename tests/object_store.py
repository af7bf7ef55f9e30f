"""An object store in memory, behind fsspec: keys and nothing else, as S3 has them, at `s3://` while a test runs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import fsspec
from fsspec.registry import _registry
from fsspec.spec import AbstractFileSystem


class Objects:
    """What is in it."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.times: dict[str, datetime] = {}
        self.meeting: threading.Barrier | None = None
        """Two reads that are to be under way at the same time."""

    def put(self, key: str, data: bytes = b"") -> None:
        """Put an object."""
        self.keys[key] = data
        self.times[key] = datetime.now(tz=timezone.utc)


OBJECTS = Objects()


class KeyFileSystem(AbstractFileSystem):
    """Folders are only what keys begin with; a key may end with a slash, or be that of a folder as well."""

    protocol = ("s3", "s3a")
    cachable = False

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        path = self._strip_protocol(path).rstrip("/")
        found = {key: self._info(key) for key in sorted(OBJECTS.keys) if key.startswith(f"{path}/")}
        if not found and path in OBJECTS.keys:
            found = {path: self._info(path)}
        return found if detail else list(found)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        path = self._strip_protocol(path).rstrip("/")
        found: dict[str, dict[str, Any]] = {}
        for key in sorted(OBJECTS.keys):
            below, slash, _rest = key.removeprefix(f"{path}/").partition("/")
            if key == path and not any(each.startswith(f"{path}/") for each in OBJECTS.keys):
                found[key] = self._info(key)
            elif key.startswith(f"{path}/") and below:
                name = f"{path}/{below}"
                found[name + slash] = {"name": name, "size": 0, "type": "directory"} if slash else self._info(key)
        if not found:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else [item["name"] for item in found.values()]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path in OBJECTS.keys:
            return self._info(path)
        if any(key.startswith(f"{path.rstrip('/')}/") for key in OBJECTS.keys):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        if path not in OBJECTS.keys:
            raise FileNotFoundError(path)
        if OBJECTS.meeting is not None:
            OBJECTS.meeting.wait(60)
            OBJECTS.meeting = None
        return OBJECTS.keys[path][start:end]

    def _info(self, key: str) -> dict[str, Any]:
        kind = {"name": key, "size": len(OBJECTS.keys[key]), "type": "file"}
        return {**kind, "LastModified": OBJECTS.times[key], "ETag": hashlib.md5(OBJECTS.keys[key]).hexdigest()}


@contextmanager
def object_store() -> Iterator[Objects]:
    """Have it at `s3://`, empty."""
    before = {name: _registry.get(name) for name in KeyFileSystem.protocol}
    OBJECTS.keys.clear()
    OBJECTS.meeting = None
    for name in KeyFileSystem.protocol:
        fsspec.register_implementation(name, KeyFileSystem, clobber=True)
    try:
        yield OBJECTS
    finally:
        for name, kind in before.items():
            _registry.pop(name, None)
            if kind is not None:
                _registry[name] = kind
        OBJECTS.keys.clear()
