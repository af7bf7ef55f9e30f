"""Whether Python would take what it compiled of an earlier version for a file that is newer.

Python compares the second in which a file was last written, and its length. A version that is put in place within the second of
the one before, and is as long, runs as that one where both lie in one folder, and as itself on nodes that have a copy of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from robust_run.launcher.records.code.scan import CodeFound

#: Of compiled files: magic number, flags, seconds, length, each of four bytes. Any flag: it is found by content, not by time.
_HEADER_BYTES = 16
_SECOND_NS = 10**9


def has_stale_bytecode(folder: str, files: Iterable[CodeFound]) -> bool:
    """Whether a folder has a compiled file of before its source was written that Python takes for the source's all the same.

    A compiled file that is as it should be is always written after its source. `files`: those of the folder.
    """
    sources: dict[str, dict[str, CodeFound]] = {}
    for found in files:
        if found.path.endswith(".py") and not found.link:
            parent, name = os.path.split(found.path)
            sources.setdefault(parent, {})[name.removesuffix(".py")] = found
    return any(_holds_stale(os.path.join(folder, parent, "__pycache__"), sources[parent]) for parent in sources)


def _holds_stale(cache: str, sources: dict[str, CodeFound]) -> bool:
    with suppress(OSError), os.scandir(cache) as entries:
        for entry in entries:
            found = sources.get(entry.name.partition(".")[0])
            if found is not None and entry.name.endswith(".pyc") and _is_stale(entry, found):
                return True
    return False


def _is_stale(entry: os.DirEntry[str], found: CodeFound) -> bool:
    second = found.modified_ns // _SECOND_NS
    with suppress(OSError):
        if (
            second * _SECOND_NS <= entry.stat().st_mtime_ns < found.modified_ns
        ):  # else it is not opened: there are thousands
            with open(entry.path, "rb") as file:
                header = file.read(_HEADER_BYTES)
            wanted = (second & 0xFFFFFFFF).to_bytes(4, "little") + (len(found.data) & 0xFFFFFFFF).to_bytes(4, "little")
            return header[4:] == bytes(4) + wanted
    return False
