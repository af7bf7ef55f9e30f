"""Storage: a state as a checkpoint of `ckpt_io`, written and read by all ranks together.

Tensors have the names of their keys. Beside them, each rank's other values are a tensor of bytes under a reserved name. Content
that ranks have under one name and that is not the same (a stage of a pipeline, a share that no DTensor tells of) is kept for
each rank.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import msgspec
import torch
import xxhash

from robust_run.checkpoint import together
from robust_run.checkpoint.fitting import Fitting
from robust_run.checkpoint.layouts import is_spread
from robust_run.checkpoint.rules.encoding import decode, encode
from robust_run.checkpoint.types import Values, stored_name, values_name
from robust_run.ckpt_io import address, catalog, dcp
from robust_run.ckpt_io.dcp.tensors import byte_view, on_host
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.rules.keeping import KeepNewest, mark_of
from robust_run.ckpt_io.seen import step_said
from robust_run.errors import RobustRunError
from robust_run.store.errors import StoreError

_DIGEST_BITS = (1 << 62) - 1


def save(folder: str, values: Values, tensors: tuple[torch.Tensor, ...]) -> None:
    """Save as FOLDER/step-N; all ranks take part. Raises CheckpointError, StoreError, UserError."""
    dcp.save(as_stored(values, tensors), url_of(folder, values.step), step=values.step, facts=facts_of(values))


def facts_of(values: Values) -> dict[str, str] | None:
    """Return what the manifest says of it: that --ckpt-keep may remove it later, if that holds."""
    return mark_of(values.keeping) if values.keeping is not None else None


def remove_old(folder: str, rule: KeepNewest) -> str:
    """Remove checkpoints of a folder that may go; return what hindered that, for people. For rank 0, after a save."""
    try:
        catalog.keep_newest(folder, rule)
    except (RobustRunError, OSError) as error:  # what is saved is saved; it is tried again after the next save
        return f"older checkpoints in {folder} are not removed: {error}"
    return ""


def url_of(folder: str, step: int) -> str:
    """Return where a step is saved. Raises UserError: the folder is no address."""
    return address.join(address.normal(folder), f"step-{step}")


def as_stored(values: Values, tensors: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Return the state dict that storage has of a state, with the tensors themselves; all ranks take part."""
    values = msgspec.structs.replace(values, own=_own(values, tensors), keeping=None)
    data = torch.frombuffer(bytearray(encode(values)), dtype=torch.uint8)
    state = {stored_name(values, number): tensor for number, tensor in enumerate(tensors)}
    return {**state, values_name(values.rank): data}


def newest_first(folder: str, most_step: int | None = None) -> list[tuple[str, str]]:
    """Return the checkpoints of a folder, as rank 0 sees them, each with what is wrong with it (empty: nothing that can be seen).

    With `most_step`: none of a later step.
    """

    def look() -> list[tuple[str, str]]:
        found = [(_step_of(each), each) for each in catalog.list_checkpoints(folder) if _is_committed(each)]
        found = [(step, each) for step, each in found if most_step is None or step <= most_step]
        found.sort(key=lambda one: one[0], reverse=True)
        return [(each.url, "" if each.state == "valid" else f"{each.state}: {each.reason}") for _, each in found]

    return together.first_says(look)


def _is_committed(found: catalog.RootEntry) -> bool:
    """Whether it is a checkpoint, whole or damaged. Others' programs have files of a manifest's name, too."""
    is_named = step_said(found.name) is not None
    return found.state in ("valid", "damaged parts") or (found.state == "damaged manifest" and is_named)


def _step_of(found: catalog.RootEntry) -> int:
    return found.step if found.step is not None else step_said(found.name) or 0


def newest_there(folder: str) -> tuple[float | None, int]:
    """Return when the newest checkpoint of a folder was made, in seconds since the epoch, and the highest step that is there.

    None and 0: there is none, or no telling.
    """
    with suppress(CheckpointError, StoreError, OSError):
        valid = [found for found in catalog.list_checkpoints(folder) if found.state == "valid"]
        made_s = [found.created_s for found in valid if found.created_s is not None]
        return max(made_s, default=None), max((found.step or 0 for found in valid), default=0)
    return None, 0


def load(url: str, state: dict[str, Any]) -> Values:
    """Load a checkpoint into the state; all ranks take part. Raises CheckpointError, UserError."""
    values = load_values(url)
    fitting = together.all_or_none(lambda: Fitting(values, state))
    dcp.load({stored_name(values, number): tensor for number, tensor in fitting.targets.items()}, url)
    fitting.settle()
    return values


def load_values(url: str) -> Values:
    """Return this rank's values; those of rank 0 if there were fewer ranks; all ranks take part. Raises CheckpointError."""
    rank, _ = together.rank_and_size()
    name, size_bytes = together.all_or_none(lambda: _find_values(url, rank))
    data = torch.empty(size_bytes, dtype=torch.uint8)
    dcp.load({name: data}, url)
    return together.all_or_none(lambda: decode(bytes(byte_view(data)), url))


def _find_values(url: str, rank: int) -> tuple[str, int]:
    """Return the name and size of this rank's values; those of rank 0 if there were fewer ranks."""
    with closing(open_checkpoint(url)) as checkpoint:
        sizes = {tensor.name: tensor.sizes for tensor in checkpoint.manifest.tensors}
    for name in (values_name(rank), values_name(0)):
        if len(sizes.get(name, ())) == 1:
            return name, sizes[name][0]
    raise CheckpointError(f"{url} was not saved by robust_run.checkpoint: load it with robust_run.ckpt_io.dcp")


def _own(values: Values, tensors: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """Return which tensors other ranks have with other content."""
    whole = [number for number, tensor in enumerate(tensors) if not is_spread(tensor)]
    if not together.are_several():
        return ()
    names = msgspec.msgpack.encode([values.tensors[number] for number in whole])
    if not all(together.same_on_all([xxhash.xxh3_64_intdigest(names) & _DIGEST_BITS])):
        return tuple(whole)
    same = together.same_on_all([_digest(tensors[number], values.tensors[number].name) for number in whole])
    return tuple(number for number, is_same in zip(whole, same, strict=True) if not is_same)


def _digest(tensor: torch.Tensor, name: str) -> int:
    return xxhash.xxh3_64_intdigest(byte_view(on_host(tensor, name))) & _DIGEST_BITS
