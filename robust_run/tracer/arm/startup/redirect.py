"""Has modules of the user's folder imported from a copy of it: what on `sys.path` leads into the one leads into the other.

`sitecustomize` loads this file by its path, in a worker that runs a version of the code which is not, or may soon not be, what
lies in the user's folder. Python's standard library only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_in(path: str, folder: str) -> bool:
    """Whether a path is a folder, or below it, as it is written."""
    return path == folder or path.startswith(f"{folder}{os.sep}")


def install(root: str, copy: str) -> None:
    """Redirect from now on. What the copy leads back to (environments, data) is found where it is.

    The copy may lie below the root, as run directories often do: what is in it is where it should be.
    """
    true_copy = os.path.realpath(copy)

    def inside(path: str) -> str:
        """Return the place of a path in the copy; empty where it has none of its own."""
        if not is_in(path, root) or is_in(path, copy) or is_in(os.path.realpath(path), true_copy):
            return ""
        target = copy + path[len(root) :]
        true_target = os.path.realpath(target)
        return target if is_in(true_target, true_copy) and os.path.isdir(target) else ""

    def hook(path: Any) -> Any:
        target = inside(path) if isinstance(path, str) else ""
        if not target:
            raise ImportError("not redirected")
        for index, entry in enumerate(sys.path):
            if entry == path:
                sys.path[index] = target  # children that are told this path find the same
        for other in sys.path_hooks:
            if other is not hook:
                try:
                    return other(target)
                except ImportError:
                    continue
        raise ImportError("no finder for the copy")

    sys.path_hooks.insert(0, hook)
    for path in list(sys.path_importer_cache):
        if inside(path):
            sys.path_importer_cache.pop(path, None)
