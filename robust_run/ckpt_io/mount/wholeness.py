"""Whether a file that was closed lacks something, told by its format, before it becomes what its name stands for.

What was closed is believed unless its bytes show that it is a zip archive, a safetensors file or one of numpy.save, and that
it is not whole. Little is read: what the first and last bytes do not tell is in a zip archive's directory and in the pickle of
torch.save. Only of a zip archive without a directory at its end all is read, to see whether a whole one lies at its front:
programs write more behind a torch.save.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from robust_run.ckpt_io.finding import FoundManifest
from robust_run.ckpt_io.foreign.ends import Ends, whole_zip_ends_in
from robust_run.ckpt_io.foreign.torch_records import missing_records
from robust_run.ckpt_io.reading import Checkpoint, Effort
from robust_run.ckpt_io.rules.manifest import encode
from robust_run.ckpt_io.rules.types import LogicalFile, Manifest, SavePlan
from robust_run.ckpt_io.targets import Targets
from robust_run.errors import RobustRunError
from robust_run.store import paths
from robust_run.store.opening import open_store
from robust_run.store.types import Store

#: Longer than the last record of a zip archive, with what precedes it.
_OVERLAP_BYTES = 128


def uncommitted(plan: SavePlan, file: LogicalFile, stores: Callable[[str], Store]) -> Checkpoint:
    """Return what a save wrote, and did not commit, for reading. Raises StoreError."""
    shown = (paths.shown(folder) for folder in plan.folders[1:])
    manifest = Manifest(uuid=plan.uuid, created_s=time.time(), targets=(".", *shown), files=(file,))
    found = FoundManifest(manifest, encode(manifest))
    targets = Targets(plan.where, found, stores(plan.url), stores)
    return Checkpoint(plan.where, manifest, targets, Effort(targets.threads), verify=True)


def what_is_missing(ends: Ends, plan: SavePlan, file: LogicalFile) -> str:
    """Return what shows that a file is not whole, in words; empty if nothing does."""
    end, why = ends.told
    if end == "unknown" or file.size_bytes != ends.size_bytes:  # it was made longer, with zeros
        return ""
    if not ends.is_zip:
        return why
    try:
        with closing(uncommitted(plan, file, open_store)) as source:
            if end == "cut off":
                return "" if _has_a_whole_zip_at_its_front(source, file) else why
            return missing_records(_reading(ends, source), file.size_bytes)
    except RobustRunError:
        return ""  # it is for the commit to say what is wrong with a target


def _reading(ends: Ends, source: Checkpoint) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        kept = ends.kept(offset, size)
        return kept if kept is not None else source.read_bytes(0, offset, size)

    return read


def _has_a_whole_zip_at_its_front(source: Checkpoint, file: LogicalFile) -> bool:
    before = b""
    for at in range(0, file.size_bytes, file.unit_bytes):
        data = before + source.read_bytes(0, at, min(file.unit_bytes, file.size_bytes - at))
        if whole_zip_ends_in(data, at - len(before)):
            return True
        before = data[-_OVERLAP_BYTES:]
    return False
