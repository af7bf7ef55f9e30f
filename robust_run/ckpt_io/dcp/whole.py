"""A state dict made from nothing but a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from robust_run.ckpt_io.dcp.tensors import dtype_of
from robust_run.ckpt_io.errors import CheckpointError, ManifestRefused
from robust_run.ckpt_io.rules.types import Manifest

Path = Sequence[str | int]


def empty_state(manifest: Manifest) -> dict[str, Any]:
    """Return a state dict of the checkpoint's shape: tensors with memory but no content, None for each object.

    Raises:
        CheckpointError: There is neither a tensor nor an object in it, but files as they are.
        ManifestRefused: Its paths contradict each other.
        ObjectRefused: A dtype that this version of torch does not have.
    """
    check_has_state(manifest)
    values: dict[str, Any] = {blob.name: None for blob in manifest.blobs}
    for tensor in manifest.tensors:
        values[tensor.name] = torch.empty(tensor.sizes, dtype=dtype_of(tensor.dtype))
    return nested(values, manifest.paths)


def check_has_state(manifest: Manifest) -> None:
    """Raise CheckpointError for a checkpoint of files as they are: an empty state dict would say that nothing is in it."""
    if not manifest.tensors and not manifest.blobs and any(file.size_bytes for file in manifest.files):
        raise CheckpointError(
            f"it has no tensors that can be taken singly, only {len(manifest.files)} files as they are; "
            "robust ckpt convert --to files writes those"
        )


def nested(values: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return a nested state dict of values by their flattened keys; a key without a path stays as it is.

    Raises:
        ManifestRefused: Two keys want one place, or a list has a hole.
    """
    state: dict[str | int, Any] = {}
    for name, value in values.items():
        *way, last = paths.get(name, (name,))
        place = state
        for step in way:
            inner = place.setdefault(step, _Branch())
            if not isinstance(inner, _Branch):
                raise ManifestRefused(f"the path of {name!r:.200} leads through a value")
            place = inner
        if last in place:
            raise ManifestRefused(f"the path of {name!r:.200} is another's too")
        place[last] = value
    return {str(key): _settled(value) for key, value in state.items()}


class _Branch(dict[str | int, Any]):
    """A dict or list that is being built; a list by its positions."""


def _settled(value: Any) -> Any:
    """Return plain dicts and lists. Positions are held against the number of items, so no number makes a long list."""
    if not isinstance(value, _Branch):
        return value
    if all(isinstance(key, int) for key in value):
        if sorted(value) != list(range(len(value))):
            raise ManifestRefused("a list in it has holes")
        return [_settled(value[position]) for position in range(len(value))]
    if any(isinstance(key, int) for key in value):
        raise ManifestRefused("a path leads to a name and a position in one place")
    return {key: _settled(inner) for key, inner in value.items()}
