"""Keeps edits out of an attempt that runs in the user's folder: a module that was edited is imported as it was kept.

The launcher keeps the job's code while the first workers start, or before, and then makes two links in a folder of its own:
`root` leads to the user's folder, `kept` to what it held. A file in the one that differs from that in the other was edited
since. `sitecustomize` loads this file by its path. Python's standard library only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any


def install(links: str) -> None:
    """Take the place of Python's own finder of modules in folders, and ask it."""
    for index, finder in enumerate(sys.meta_path):
        if getattr(finder, "__name__", "") == "PathFinder":
            sys.meta_path[index] = Steady(links, finder)
            return


class Steady:
    """Finds what Python's own finder finds, but for the user's modules as they were when the attempt began."""

    def __init__(self, links: str, finder: Any) -> None:
        self.links = links
        self.finder = finder
        self.root = self.kept = ""
        """Empty: not known yet."""
        self.speaks = os.environ.get("LOCAL_RANK", "0") == "0"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)  # `find_distributions` and others

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return where a module is to be loaded from, or None. Raises what Python's own finder does."""
        spec = self.finder.find_spec(name, path, target)
        try:
            return self.steadied(spec, name, path)
        except Exception:  # what was kept may be damaged in any way: the user's own file is there
            return spec

    def steadied(self, spec: Any, name: str, path: Sequence[str] | None) -> Any:
        """Return the same, or what was kept in its place."""
        if not self.is_known():
            return spec
        if spec is None:
            return self.as_it_was(name, path)
        below = self.below(place_of(spec))
        if not below:
            return spec
        if self.is_new(below, spec):
            return self.as_it_was(name, path, instead_of=below) or spec
        if not below.endswith(".py") or not was_edited(self.root + below, self.kept + below):
            return spec
        self.say_once(below)
        from importlib.util import spec_from_file_location

        return spec_from_file_location(
            name, self.kept + below, submodule_search_locations=spec.submodule_search_locations
        )

    def is_new(self, below: str, spec: Any) -> bool:
        """Whether what was found was not there when the attempt began, though the folder that it was looked for in was.

        So is a package that takes the place of a module, or is put beside it: Python prefers the package.
        """
        is_package = spec.submodule_search_locations is not None
        entry = os.path.dirname(below if not is_package or spec.origin is None else os.path.dirname(below))
        return os.path.isdir(self.kept + entry) and not os.path.lexists(self.kept + below)

    def as_it_was(self, name: str, path: Sequence[str] | None, instead_of: str = "") -> Any:
        """Return where a module was that the user's folder has no more, or has elsewhere; None where it never was."""
        entries = [self.below(each) for each in (sys.path if path is None else path) if isinstance(each, str)]
        kept = [self.kept + each for each in entries if each]
        spec = self.finder.find_spec(name, kept) if kept else None
        if spec is None or spec.origin is None or not spec.origin.startswith(f"{self.kept}{os.sep}"):
            return None
        self.say_once(instead_of or spec.origin[len(self.kept) :])
        return spec

    def is_known(self) -> bool:
        """Whether the code was kept by now."""
        if not self.root:
            try:
                self.kept = os.readlink(os.path.join(self.links, "kept"))
                self.root = os.readlink(os.path.join(self.links, "root"))
            except OSError:
                return False
        return True

    def below(self, path: str) -> str:
        """Return the rest of a path in the user's folder, `/` first; empty for one elsewhere, and in what was kept."""
        if path == self.root:
            return os.sep
        if path == self.kept or path.startswith(f"{self.kept}{os.sep}"):
            return ""  # it may lie below the user's folder
        return path[len(self.root) :] if path.startswith(f"{self.root}{os.sep}") else ""

    def say_once(self, below: str) -> None:
        """Say of the first such file that it is not what the user's folder holds."""
        if self.speaks:
            self.speaks = False
            sys.stderr.write(f"robust-run: {below[1:]} was edited since; this attempt goes on with what it was\n")


def place_of(spec: Any) -> str:
    """Return the file of a module, or the folder of a package without one; empty for what is in neither."""
    if spec.origin and spec.has_location:
        return str(spec.origin)
    return next(iter(spec.submodule_search_locations or ()), "")


def was_edited(path: str, kept: str) -> bool:
    """Whether a file is not what was kept of it. What was never kept was not."""
    try:
        found, before = os.stat(path), os.stat(kept)
        if (found.st_size, found.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
            return False
        with open(path, "rb") as one, open(kept, "rb") as other:
            return one.read() != other.read()
    except OSError:
        return False
