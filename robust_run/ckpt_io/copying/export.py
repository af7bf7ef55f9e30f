"""From one of ours to what others read: a safetensors file, a folder of torch.distributed.checkpoint, plain files."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, Literal

import msgspec

from robust_run.ckpt_io.address import split
from robust_run.ckpt_io.copying.streams import WINDOW_BYTES, of_view
from robust_run.ckpt_io.copying.trees import named
from robust_run.ckpt_io.copying.types import Progress
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.ckpt_io.views.reader import read_view
from robust_run.ckpt_io.views.safetensors_view import safetensors_view, stretch_of
from robust_run.ckpt_io.views.types import VirtualFile, whole_file
from robust_run.errors import PlatformError, UserError
from robust_run.store import paths
from robust_run.store.opening import local_path, open_store

_HOLDS = {"safetensors": "safetensors has tensors alone", "dcp": "a DCP folder has tensors and objects alone"}
_NO_TENSORS = "{} has no tensors that can be taken singly; --to files writes the files it is made of"


class LeftOut(msgspec.Struct, frozen=True):
    """What another format has no place for."""

    kind: Literal["object", "file"]
    names: tuple[str, ...]
    why: str

    @property
    def said(self) -> str:
        """For people."""
        are = " is" if len(self.names) == 1 else "s are"
        return f"{len(self.names)} {self.kind}{are} left out: {self.why}: {named(self.names)}"


def left_out(manifest: Manifest, to: str) -> list[LeftOut]:
    """Return what a checkpoint has that `--to` leaves out: objects, and files that no tensor and no object lies in. Pure."""
    if to not in _HOLDS:
        return []
    used = {chunk.file for tensor in manifest.tensors for chunk in tensor.chunks}
    used.update(blob.file for blob in manifest.blobs)
    files = tuple(file.name for at, file in enumerate(manifest.files) if at not in used and file.size_bytes)
    objects = tuple(blob.name for blob in manifest.blobs) if to == "safetensors" else ()
    found = (LeftOut("object", objects, _HOLDS[to]), LeftOut("file", files, f"{_HOLDS[to]} (files go with --to files)"))
    return [each for each in found if each.names]


def to_safetensors(source: Checkpoint, url: str, progress: Progress) -> int:
    """Write the tensors as one file; return its size. Raises CheckpointError or StoreError; then there is none."""
    if not source.manifest.tensors:
        raise CheckpointError(_NO_TENSORS.format(source.url))
    view = safetensors_view(source.manifest, split(url)[1])
    _write(source, view, url, progress)
    return view.size_bytes


def to_files(source: Checkpoint, url: str, progress: Progress) -> int:
    """Write the logical files, one for one; the only one of a checkpoint, if it lay in no folder, under the name given.

    Returns their size.
    """
    files = source.manifest.files
    if len(files) == 1 and "/" not in files[0].name:
        _write(source, whole_file(0, files[0]), url, progress)
    else:
        for index, file in enumerate(files):
            _write(source, whole_file(index, file), paths.child(url, file.name), progress)
    return sum(file.size_bytes for file in files)


def to_dcp(source: Checkpoint, url: str, progress: Progress) -> int:
    """Write a folder of torch.distributed.checkpoint; return the bytes of tensors. All of it is in memory meanwhile.

    Objects that are no tensors go as they are, and are not unpickled here.

    Raises:
        UserError: The folder is not on this machine, or is not empty.
        CheckpointError: The source is damaged, or holds no tensors and no objects.
        PlatformError: The folder cannot be written to. Nothing is left in it.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    from robust_run.ckpt_io.dcp.alone import save_alone
    from robust_run.ckpt_io.dcp.failures import plain_errors

    class Planner(DefaultSavePlanner):  # type: ignore[misc,unused-ignore]
        """Passes objects on as they are."""

        def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002 - torch's name
            """Return what is written."""
            if isinstance(object, _Saved):
                return io.BytesIO(object.data)
            return super().transform_object(write_item, object)

    if not source.manifest.tensors and not source.manifest.blobs:
        raise CheckpointError(_NO_TENSORS.format(source.url))
    folder, is_new = _empty_folder(url)
    try:
        state, size = _state_of(source, progress)
        with plain_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group
            save_alone(state, dcp.FileSystemWriter(folder), Planner())
    except BaseException as error:
        _empty(folder, with_itself=is_new)
        if isinstance(error, OSError | RuntimeError):
            raise PlatformError(_why(folder, error)) from error
        raise
    return size


def _empty(folder: str, *, with_itself: bool) -> None:
    """Remove what a failed export wrote into a folder that was empty before."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            os.unlink(entry.path)
        if with_itself:
            os.rmdir(folder)


def _why(folder: str, error: BaseException) -> str:
    """Return what happened, and to which disk: the cause of what torch says may be a few errors deeper."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno):
        cause = cause.__cause__ or cause.__context__
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error).split("\n", 1)[0][:200]
    if "enforce fail" in reason:  # of torch's archives, whose writer counts bytes and does not say why some are missing
        reason = "not all bytes of a file could be written"
    with suppress(OSError):
        parent = os.path.dirname(folder)
        free = os.statvfs(parent).f_bavail * os.statvfs(parent).f_frsize
        reason += f" ({free} bytes are free on the disk of {parent})"
    return f"{folder} cannot be written to: {reason}; make room there or name another folder"


class _Saved:
    """An object as torch.save wrote it."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def _state_of(source: Checkpoint, progress: Progress) -> tuple[dict[str, Any], int]:
    """Return the nested state dict, its objects still saved, and how many bytes its tensors have."""
    import torch

    from robust_run.ckpt_io.dcp.tensors import byte_view, dtype_of
    from robust_run.ckpt_io.dcp.whole import nested

    manifest = source.manifest
    values: dict[str, Any] = {}
    total = 0
    for tensor in manifest.tensors:
        values[tensor.name] = value = torch.empty(tensor.sizes, dtype=dtype_of(tensor.dtype))
        buffer, one = byte_view(value), VirtualFile(tensor.name, [stretch_of(tensor)])
        for at in range(0, one.size_bytes, WINDOW_BYTES):
            window = buffer[at : at + WINDOW_BYTES]
            read_view(source, one, at, window)
            progress(len(window))
        total += len(buffer)
    for blob in manifest.blobs:
        values[blob.name] = _Saved(source.read_bytes(blob.file, blob.offset_bytes, blob.size_bytes))
    return nested(values, manifest.paths), total


def _empty_folder(url: str) -> tuple[str, bool]:
    """Return the path of a folder that is there and empty, and whether it was made for that."""
    if paths.scheme_of(url) not in ("", "file"):
        raise UserError(f"{url}: folders of torch.distributed.checkpoint are written on this machine only")
    folder = local_path(url)
    is_new = not os.path.lexists(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise UserError(f"{folder} is not empty: saving over what is there can leave a mixture; name a new folder")
    except OSError as error:
        raise PlatformError(f"{folder} cannot be written to: {error.strerror}") from error
    return folder, is_new


def _write(source: Checkpoint, file: VirtualFile, url: str, progress: Progress) -> None:
    root, name = split(url)
    with closing(open_store(root)) as store:
        writer = store.create(name, file.size_bytes)
        try:
            at = 0
            windows: Iterator[memoryview] = of_view(source, file)
            for window in windows:
                writer.write_at(at, [window])
                at += len(window)
                progress(len(window))
            writer.finish()
        finally:
            writer.abort()
