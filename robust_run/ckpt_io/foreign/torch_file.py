"""Which tensors are in a file of torch.save: only weights are unpickled, and no more is read than the archive's directory.

The file may come from anybody: what it inflates to, how many things it holds and how they contain each other has limits.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

import msgspec

from robust_run.ckpt_io.errors import CheckpointError

#: Of a record that is read whole: the pickle with the names, and what is beside it. Tensors are only mapped.
RECORD_BYTES = 256 << 20
#: Things in the state dict, containers included.
ITEMS = 1_000_000
_DEPTH = 64
_NAME_LENGTH = 4096
_ZIP_MAGIC = b"PK"


class NotLookedInto(CheckpointError):  # noqa: N818 - a state of the world, named as such
    """There may be nothing wrong with it, but what is in it cannot be told here."""


class TorchTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor."""

    name: str
    """The keys that lead to it, with dots between them."""
    dtype: str
    sizes: tuple[int, ...]
    size_bytes: int


def torch_tensors(path: str) -> tuple[TorchTensor, ...]:
    """Return the tensors of a file on this machine; one that is in several places, where it is first.

    Raises:
        NotLookedInto: It is no zip archive, or has more than weights in it.
        CheckpointError: It is damaged, or beyond a limit.
    """
    import pickle  # for the name of its error

    import torch

    _check_records(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise NotLookedInto(f"torch.load(weights_only=True) refuses it: {_first_line(error)}") from error
    except Exception as error:  # of many kinds, all of which mean the same
        raise CheckpointError(f"torch.load cannot read it: {_first_line(error)}") from error
    return tuple(
        TorchTensor(
            name=name,
            dtype=str(value.dtype).removeprefix("torch."),
            sizes=tuple(value.shape),
            size_bytes=value.numel() * value.element_size(),
        )
        for name, value in leaves(state)
        if isinstance(value, torch.Tensor)
    )


def leaves(state: object) -> Iterator[tuple[str, object]]:
    """Yield what is in nested dicts, lists and tuples, each container once, with the keys that lead to it.

    Raises:
        CheckpointError: More than `ITEMS` things, or names that are too long.
    """
    walked = set[int]()
    waiting: list[tuple[Iterator[tuple[str, object]], int]] = [(iter([("", state)]), 0)]
    count = 0
    while waiting:
        items, depth = waiting[-1]
        name, value = next(items, ("", _END))
        if value is _END:
            waiting.pop()
            continue
        count += 1
        if count > ITEMS or len(name) > _NAME_LENGTH:
            what = f"more than {ITEMS} things" if count > ITEMS else f"a name of more than {_NAME_LENGTH} characters"
            raise CheckpointError(f"there is {what} in it: no state dict that can be shown")
        if not isinstance(value, dict | list | tuple) or not value or depth >= _DEPTH:
            yield name, value
        elif id(value) not in walked:
            walked.add(id(value))
            waiting.append((_items(name, value), depth + 1))


_END = object()


def _items(
    prefix: str, value: dict[object, object] | list[object] | tuple[object, ...]
) -> Iterator[tuple[str, object]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield f"{prefix}.{_text(key)}" if prefix else _text(key), inner


def _text(key: object) -> str:
    """Return a key as text. Of tuples and the like only the kind: they can be longer than any memory."""
    if isinstance(key, str):
        return key[: _NAME_LENGTH + 1]
    if isinstance(key, bool | float) or (isinstance(key, int) and key.bit_length() <= 64):
        return str(key)
    return f"<{type(key).__name__}>"


def _check_records(path: str) -> None:
    """Look at the archive's directory, before torch reads anything."""
    try:
        with open(path, "rb") as file:
            start = file.read(len(_ZIP_MAGIC))
            if start == _ZIP_MAGIC:
                with zipfile.ZipFile(file) as archive:
                    _check_sizes(archive)
                return
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"its zip archive is damaged or cut off: {_first_line(error)}") from error
    if not start:
        raise CheckpointError("it is empty")
    raise NotLookedInto(
        "an old or foreign format, no zip archive of torch.save: load it and save it anew, then its tensors can be shown"
    )


def _check_sizes(archive: zipfile.ZipFile) -> None:
    for record in archive.infolist():
        is_mapped = "/data/" in record.filename and record.compress_type == zipfile.ZIP_STORED
        if record.file_size > RECORD_BYTES and not is_mapped:
            raise CheckpointError(
                f"its record {record.filename[:80]!r} has {record.file_size} bytes when it is inflated; "
                f"{RECORD_BYTES} is the limit"
            )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
