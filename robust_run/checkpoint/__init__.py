"""Checkpoints in two calls: `save` at every step, `load` at the start. To memory where robust-run offers it, and to storage.

    from robust_run import checkpoint

    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    begin = checkpoint.load(state) or 0
    for step in range(begin + 1, steps + 1):
        ...
        checkpoint.save(state, step=step)

Works under plain python, torchrun and robust-run. Importing this package imports no torch; the first call does.
**Invariant:** what is loaded is data, bit for bit what was saved, and of one step on all ranks; or there is an error.
"""

from __future__ import annotations

from robust_run.checkpoint.errors import StateRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from robust_run.checkpoint.dcp_reading import MemoryReader
    from robust_run.checkpoint.dcp_writing import MemoryStager, MemoryWriter

__all__ = ["MemoryReader", "MemoryStager", "MemoryWriter", "StateRefused", "load", "save"]
_WHERE = {"MemoryReader": "dcp_reading", "MemoryStager": "dcp_writing", "MemoryWriter": "dcp_writing"}


def __getattr__(name: str) -> Any:
    """Import what torch.distributed.checkpoint is needed for when it is asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def save(
    state: dict[str, Any],
    *,
    step: int,
    folder: str | None = None,
    every: int | str | None = None,
    keep: int | None = None,
) -> None:
    """Save the state after a step; all ranks call it, with the same step, which counts up. Random number generators go along.

    `state`: modules, optimizers, schedulers, loaders (what has state_dict and load_state_dict), tensors, plain values, and dicts,
    lists and tuples of these. With ROBUST_CKPT_MEMORY it goes to memory at every call. To storage, FOLDER/step-N, it goes every
    so many steps (500) or minutes ("10m"): by default every 10 minutes with memory, else at every call. `folder`, `every`: in
    the place of ROBUST_CKPT_DIR and ROBUST_CKPT_EVERY. `keep`: in the place of ROBUST_CKPT_KEEP, so many of the newest stay in
    storage, and older ones that were saved with it are removed; unless that is given, all stay. With memory that is done in the
    background, and at the end of the job once more; with `every=1` the checkpoint is durable when the call returns. In a replay
    (ROBUST_REPLAY) nothing is saved.

    Raises:
        StateRefused: Something in it cannot be kept; all of it is named.
        UserError: There is no folder, `step`, `every` or `keep` is no number that counts, or `step` is smaller than the last.
        CheckpointError: Storage failed, where it is not written in the background. A failure of memory is one line on stderr, and
            training goes on.
    """
    from robust_run.checkpoint import session

    session.save(state, step=step, folder=folder, every=every, keep=keep)


def load(state: dict[str, Any], *, folder: str | None = None) -> int | None:
    """Load what ROBUST_RESUME names, else the newest good checkpoint of the folder, into the state; return its step.

    In place, on all ranks alike; random number generators as well, if there are as many ranks as when it was saved. None: there
    is nothing to load, begin at step 0.

    Raises:
        CheckpointError: It cannot be read, is not what was saved, or ranks would begin at different steps; or there are
            checkpoints, and none is good: whoever began anew would save over what may still be mended.
        UserError: It does not fit the state.
    """
    from robust_run.checkpoint import loading

    return loading.load(state, folder=folder)
