"""Refreshes, after a fork, state that libraries took from their surroundings when they were imported.

Only modules that are loaded are touched; nothing is imported that the preload did not import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import Any


def reseed() -> None:
    """Give this process random numbers of its own; forks of one process would otherwise all draw the same."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    random = sys.modules.get("random")
    if random is not None:
        random.seed()


def adjust_threads(at_start: Mapping[str, str], env: Mapping[str, str], cpus: Collection[int]) -> None:
    """Let torch compute with as many threads as the variables and the CPUs of this worker say, where they say otherwise.

    Without a variable a fresh process counts its CPUs at import; here it can only have counted too many.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    wanted = _number(env.get("OMP_NUM_THREADS")) or _number(env.get("MKL_NUM_THREADS"))
    counted = _number(at_start.get("OMP_NUM_THREADS")) or _number(at_start.get("MKL_NUM_THREADS"))
    if wanted is None and counted is not None:
        raise ValueError("OMP_NUM_THREADS was set when torch was imported and is not set for this worker")
    if wanted is None and cpus and len(cpus) < torch.get_num_threads():
        wanted = len(cpus)
    if wanted is not None and wanted != counted:
        torch.set_num_threads(wanted)


def _number(text: str | None) -> int | None:
    """Return the first number of a list like `4,2`, as OpenMP reads it; None if there is none or it is not positive."""
    first = (text or "").split(",")[0].strip()
    return int(first) or None if first.isdecimal() else None


def renew_threading() -> None:
    """Let the main thread know the number that the kernel gave it; Python renews it in all threads that it starts itself."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading.main_thread()._set_native_id()


def renew_multiprocessing() -> None:
    """Have the folder and the secret that `multiprocessing` takes at import.

    With another process's folder, `spawn` children look for a relative `__main__` in the wrong place and die, for ever again.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)


def renew_tempfile(at_start: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Look for the temporary folder again if its variables differ."""
    tempfile: Any = sys.modules.get("tempfile")
    names = ("TMPDIR", "TEMP", "TMP")
    if tempfile is not None and any(at_start.get(name) != env.get(name) for name in names):
        tempfile.tempdir = None


def renew_streams() -> None:
    """Open `sys.std*` again where they remember another kind of file than the descriptor is now.

    Python asks once, at its start, whether a stream can be sought; all else it asks each time, or it is the same for all
    kinds because of `-u`. A stream that is no longer Python's own is left alone.
    """
    import io

    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper or stream is not getattr(sys, f"__{name}__"):
            continue
        if _seekable(descriptor) == stream.seekable():
            continue
        raw = io.FileIO(descriptor, mode, closefd=False)
        raw.name = f"<{name}>"
        fresh = io.TextIOWrapper(
            io.BufferedReader(raw) if mode == "r" else raw,
            encoding=stream.encoding,
            errors=stream.errors,
            newline=None if mode == "r" else "\n",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        vars(fresh)["mode"] = mode
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)


def _seekable(descriptor: int) -> bool:
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return False
    return True


def forget_folders() -> None:
    """Let the importer look into every folder again: code may have been added or removed since the imports."""
    for folder, finder in list(sys.path_importer_cache.items()):
        if finder is None or not os.path.isabs(folder):
            del sys.path_importer_cache[folder]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
