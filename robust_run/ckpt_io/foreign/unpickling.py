"""Reads the pickle that is the metadata of torch.distributed.checkpoint, and nothing but what such metadata consists of.

No class of torch is imported and no function of anybody is called: every name in the pickle stands for a plain record
of ours, and any other name is an error. What a crafted one can do is to describe a strange checkpoint; that is checked.
"""

from __future__ import annotations

import io
import pickle  # read with `find_class` below, which knows eight records and nothing that acts
from typing import Any

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.boxes import BYTES_OF

_METADATA = "torch.distributed.checkpoint.metadata"
#: Classes of torch that become records: their names, and the modules that different versions keep them in.
RECORDS = {
    "Metadata": _METADATA,
    "TensorStorageMetadata": _METADATA,
    "BytesStorageMetadata": _METADATA,
    "ChunkStorageMetadata": _METADATA,
    "TensorProperties": _METADATA,
    "MetadataIndex": _METADATA,
    "StorageMeta": _METADATA,
    "_StorageInfo": "torch.distributed.checkpoint.filesystem",
}
#: What is in the metadata but of no use here; its arguments are dropped.
_IGNORED = {
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
}


class UnpickledRecord:
    """An object of the metadata: its fields are attributes."""

    kind = ""
    state: object = None
    """What a class of torch keeps in its own way (its elements' properties: a tuple)."""

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update((key, value) for key, value in state.items() if isinstance(key, str))
        else:
            self.state = state


class _Ignored:
    """Something that may be called, and is nothing."""

    __slots__ = ()

    def __call__(self, *_: object) -> None:
        return None


class _Member:
    """Stands for `getattr`: Python 3.11.0 to 3.11.3 write a member of an enumeration as its class and its name."""

    __slots__ = ()

    def __call__(self, owner: object, name: object) -> None:
        if not isinstance(owner, _Ignored) or not isinstance(name, str):
            raise CheckpointError("its metadata asks for a part of something else than an enumeration; nothing was run")


# The one in C makes its memo as large as the pickle tells it to; the one in Python keeps a dictionary.
_PurePython: Any = pickle._Unpickler


class _Unpickler(_PurePython):  # type: ignore[misc]
    """Knows records, types of elements and sizes, by name."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        # Classes of this one reading: a pickle may set attributes of what it is given.
        self._records = {name: type(name, (UnpickledRecord,), {"kind": name}) for name in RECORDS}

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for. Raises CheckpointError for any that has no place in such metadata."""
        if RECORDS.get(name) == module:
            return self._records[name]
        if module == "torch" and name == "Size":
            return tuple
        if module == "torch" and name in BYTES_OF:
            return name
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) in _IGNORED:
            return _Ignored()
        if name == "getattr" and module in ("builtins", "__builtin__"):
            return _Member()
        raise CheckpointError(
            f"its metadata names {module}.{name}"[:200]
            + ", which metadata of torch.distributed.checkpoint does not consist of; "
            "nothing of it was run. Convert it where it was made, with `robust ckpt convert`, if you trust it"
        )

    def persistent_load(self, pid: object) -> Any:  # noqa: ARG002
        """Refuse."""
        raise CheckpointError("its metadata refers to an object outside of it")


def read_metadata(data: bytes) -> UnpickledRecord:
    """Return the record `Metadata`. Raises CheckpointError for anything that is none."""
    try:
        found = _Unpickler(data).load()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise any
        raise CheckpointError(f"its metadata is damaged: {type(error).__name__}: {error}"[:300]) from error
    if not isinstance(found, UnpickledRecord) or found.kind != "Metadata":
        raise CheckpointError("its metadata is no record of torch.distributed.checkpoint")
    return found
