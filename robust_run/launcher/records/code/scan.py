"""Looks through a folder of code: which files are code, which are left where they are, and why.

Code is what ends in one of `ENDINGS`, is small, is text, and is not ignored; and scripts without an ending that say what runs
them (`#!`). A folder without any code below it is left as a whole: it may be where the program writes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice

from robust_run.launcher.records.code.errors import CodeError, TooMuchError
from robust_run.launcher.records.code.ignore import LARGEST_RULES_BYTES, RULE_FILES, IgnorePattern, is_ignored, parse
from robust_run.launcher.records.code.names import why_no_link, why_not
from robust_run.launcher.records.code.reading import read_file
from robust_run.launcher.records.code.types import HOLDS_RUNS, LIMITS, CodeLimits, Left
from robust_run.launcher.records.code.work_tree import work_tree_of

ENDINGS = (
    ".py .pyi .pyx .pxd .pxi .ipynb .yaml .yml .toml .cfg .ini .conf .json .sh .bash .cu .cuh .c .cc .cpp .cxx .h .hh .hpp "
    ".hip .cl .mojo .jinja .jinja2 .j2 .sql .proto .rs .go .jl .gin .libsonnet .jsonnet .hcl"
).split()
_ENDINGS = frozenset(ENDINGS)

WEAK_ENDINGS = frozenset((".json", ".ipynb"))
"""Of configuration, but as often of what a program writes: alone, such files do not make a folder one of code."""
CONFIG_FOLDERS = frozenset(("conf", "confs", "config", "configs", "cfg", "cfgs"))
"""Unless it is called so."""

#: What every run directory has.
JOURNALS = ("journal.jsonl", "roles.jsonl")
#: Where they are by default. Of whichever job: copies that lead there would lead to copies that lead back.
RUNS = "robust-runs"
#: A folder of more entries is led to as a whole, although it holds a run directory.
MOST_BESIDE_RUNS = 1000
OTHER_REPOSITORY = "is a repository of its own"

#: So much of a file is looked at to tell text from data.
LOOKED_AT_BYTES = 8192


class CodeFound:
    """A file of code, or a link to one."""

    __slots__ = ("data", "executable", "link", "modified_ns", "path")

    def __init__(self, path: str, data: bytes, status: os.stat_result, link: str = "") -> None:
        self.path = path
        self.data = data
        self.executable = bool(status.st_mode & stat.S_IXUSR)
        self.modified_ns = status.st_mtime_ns
        self.link = link


class Scan:
    """One look through a folder. Raises CodeError for a folder that cannot be read, TooMuchError for one that is too large."""

    def __init__(
        self,
        root: str,
        *,
        leave: tuple[str, ...] = (),
        always: tuple[str, ...] = (),
        limits: CodeLimits = LIMITS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`leave`: absolute folders that are not looked into (run directories). `always`: paths that are code (the script)."""
        self.files: list[CodeFound] = []
        self.left: list[Left] = []
        self._root = root
        self._leave = frozenset(os.path.realpath(each) for each in leave)
        self._is_of_git = bool(work_tree_of(root))
        self._always = frozenset(always)
        self._limits = limits
        self._clock = clock
        self._until_s = clock() + limits.patience_s if clock is not None else 0.0
        self._entries = self._bytes = 0
        self._of_runs: set[str] = set()
        """Folders in which run directories lie, directly or deeper."""
        rules = self._rules("", (".git/info/exclude",))
        files, left = self._folder("", rules)
        self.files = sorted(files, key=lambda found: found.path)
        self.left = sorted(left, key=lambda each: each.path)

    def _folder(self, folder: str, rules: list[IgnorePattern]) -> tuple[list[CodeFound], list[Left]]:
        """Return the code below a folder and what of it is left, `folder` with a `/` at its end unless it is the root."""
        rules = rules + self._rules(folder, RULE_FILES)
        files: list[CodeFound] = []
        left: list[Left] = []
        for entry in self._listed(folder):
            path = folder + entry.name
            odd = why_not(path, self._limits)
            if odd:
                left.append(Left(path, odd))
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if path not in self._always and is_ignored(rules, path, is_folder=is_folder):
                inside = tuple(each for each in self._always if each.startswith(f"{path}/"))
                if not inside:
                    left += self._around_runs(path, "is ignored") if is_folder else [Left(path, "is ignored")]
                    continue
            if is_folder and path.count("/") + 1 >= self._limits.deepest:
                left.append(Left(path, "is too deep"))
            elif is_folder:
                below, beside = self._below(path, rules)
                files += below
                left += beside
            else:
                self._one(entry, path, files, left)
        return files, left

    def _below(self, path: str, rules: list[IgnorePattern]) -> tuple[list[CodeFound], list[Left]]:
        here = os.path.join(self._root, path)
        if os.path.realpath(here) in self._leave or any(os.path.lexists(os.path.join(here, name)) for name in JOURNALS):
            self._note_run(path)
            return [], []  # not even led to: it holds the copies themselves
        if os.path.lexists(os.path.join(here, "pyvenv.cfg")):
            return [], [Left(path, "is a virtual environment")]
        if self._is_of_git and os.path.lexists(os.path.join(here, ".git")):
            return [], self._around_runs(path, OTHER_REPOSITORY)
        try:
            files, left = self._folder(f"{path}/", rules)
        except CodeError as error:
            if isinstance(error, TooMuchError):
                raise
            return [], [Left(path, "cannot be read")]
        if not all(is_weak(found.path) for found in files):
            return files, left
        if path not in self._of_runs:
            return [], [Left(path, "holds no code")]
        left += [Left(found.path, "is no code") for found in files]
        return [], [Left(path, HOLDS_RUNS), *left] if left else []

    def _note_run(self, path: str) -> None:
        while path := path.rpartition("/")[0]:
            self._of_runs.add(path)

    def _around_runs(self, path: str, reason: str) -> list[Left]:
        """Return a folder that is left without a look into it; where a run directory is in it, all in it but that."""
        here = os.path.realpath(os.path.join(self._root, path))
        if here in self._leave or path.rpartition("/")[2] == RUNS:
            self._note_run(path)
            return []
        if not any(each.startswith(f"{here}{os.sep}") for each in self._leave):
            return [Left(path, reason)]
        try:
            with os.scandir(here) as entries:
                found = list(islice(entries, MOST_BESIDE_RUNS + 1))
        except OSError:
            return []
        if len(found) > MOST_BESIDE_RUNS:
            return [Left(path, reason)]
        left = [Left(path, HOLDS_RUNS)]
        for entry in found:
            below = f"{path}/{entry.name}"
            if why_not(below, self._limits):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            left += self._around_runs(below, reason) if is_folder else [Left(below, reason)]
        return left

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                found = list(self._counted(entries))
        except OSError as error:
            raise CodeError(
                f"the folder {os.path.join(self._root, folder)!r} cannot be read: {error.strerror}"
            ) from error
        return sorted(found, key=lambda entry: entry.name)

    def _counted(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in entries:
            self._entries += 1
            if self._entries > self._limits.most_entries:
                raise TooMuchError(
                    f"{self._root!r} has more than {self._limits.most_entries} entries; name what is no code in .robustignore"
                )
            if self._clock is not None and self._clock() > self._until_s:
                raise TooMuchError(
                    f"looking through {self._root!r} took longer than {self._limits.patience_s:g} s; "
                    "name what is no code in .robustignore"
                )
            yield entry

    def _one(self, entry: os.DirEntry[str], path: str, files: list[CodeFound], left: list[Left]) -> None:
        try:
            found, why = self._link(entry, path) if entry.is_symlink() else self._file(entry, path)
        except OSError:
            found, why = None, "cannot be read"
        if found is None:
            left.append(Left(path, why))
            return
        files.append(found)
        self._bytes += len(found.data)
        if len(files) > self._limits.most_files or self._bytes > self._limits.most_bytes:
            raise TooMuchError(
                f"{self._root!r} has more than {self._limits.most_files} files or {self._limits.most_bytes >> 20} MiB of code; "
                "name what is no code in .robustignore"
            )

    def _link(self, entry: os.DirEntry[str], path: str) -> tuple[CodeFound | None, str]:
        target = os.readlink(entry.path)
        why = why_no_link(path, target)
        status = os.stat(entry.path)  # a link to nothing raises
        is_code = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and self._is_code(path, entry.path))
        if why or not is_code:
            return None, why or "is a link to no code"
        return CodeFound(path, b"", status, target), ""

    def _file(self, entry: os.DirEntry[str], path: str) -> tuple[CodeFound | None, str]:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return None, "is no file"
        if not self._is_code(path, entry.path):
            return None, "is no code"
        if status.st_size > self._limits.largest_file_bytes:
            return None, f"is larger than {self._limits.largest_file_bytes >> 10} KiB"
        data = read_file(entry.path, self._limits.largest_file_bytes)
        if data is None:
            return None, "is larger than it says"
        if b"\0" in data[:LOOKED_AT_BYTES]:
            return None, "is binary"
        return CodeFound(path, data, status), ""

    def _is_code(self, path: str, full: str) -> bool:
        return path in self._always or is_called_code(path, lambda: read_file(full, 2, part=True) or b"")

    def _rules(self, folder: str, names: tuple[str, ...]) -> list[IgnorePattern]:
        rules: list[IgnorePattern] = []
        for name in names:
            try:
                data = read_file(os.path.join(self._root, folder, name), LARGEST_RULES_BYTES)
            except OSError:
                continue
            rules += parse(data.decode(errors="replace"), folder) if data is not None else []
        return rules


def is_called_code(path: str, beginning: Callable[[], bytes]) -> bool:
    """Whether a file is code by its name, or by its first two bytes where that has no ending."""
    ending = os.path.splitext(path)[1].lower()
    if ending:
        return ending in _ENDINGS
    name = path.rpartition("/")[2]
    return name in RULE_FILES or name == "Makefile" or beginning()[:2] == b"#!"


def is_weak(path: str) -> bool:
    """Whether a path may as well be what a program writes as what people configure it by."""
    folders = path.split("/")[:-1]
    return os.path.splitext(path)[1].lower() in WEAK_ENDINGS and not CONFIG_FOLDERS.intersection(folders)
