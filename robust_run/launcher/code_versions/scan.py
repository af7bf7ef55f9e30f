"""Looks through a folder of code: which files are code, which are left where they are, and why.

Code is what ends in one of `ENDINGS`, is small, is text, and is not ignored; and scripts without an ending that say what runs
them (`#!`). A folder without any code below it is left as a whole: it may be where the program writes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator

from robust_run.launcher.code_versions.errors import CodeError, TooMuchError
from robust_run.launcher.code_versions.ignore import LARGEST_RULES_BYTES, RULE_FILES, Rule, is_ignored, parse
from robust_run.launcher.code_versions.names import why_no_link, why_not
from robust_run.launcher.code_versions.types import LIMITS, Left, Limits

ENDINGS = (
    ".py .pyi .pyx .pxd .pxi .ipynb .yaml .yml .toml .cfg .ini .conf .json .sh .bash .cu .cuh .c .cc .cpp .cxx .h .hh .hpp "
    ".hip .cl .mojo .jinja .jinja2 .j2 .sql .proto .rs .go .jl .gin .libsonnet .jsonnet .hcl"
).split()
_ENDINGS = frozenset(ENDINGS)

WEAK_ENDINGS = frozenset((".json", ".ipynb"))
"""Of configuration, but as often of what a program writes: alone, such files do not make a folder one of code."""
CONFIG_FOLDERS = frozenset(("conf", "confs", "config", "configs", "cfg", "cfgs"))
"""Unless it is called so."""

#: So much of a file is looked at to tell text from data.
LOOKED_AT_BYTES = 8192


class Found:
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
        limits: Limits = LIMITS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`leave`: absolute folders that are not looked into (run directories). `always`: paths that are code (the script)."""
        self.files: list[Found] = []
        self.left: list[Left] = []
        self._root = root
        self._leave = frozenset(os.path.realpath(each) for each in leave)
        self._always = frozenset(always)
        self._limits = limits
        self._clock = clock
        self._until_s = clock() + limits.patience_s if clock is not None else 0.0
        self._entries = self._bytes = 0
        self._of_runs: set[str] = set()
        """Folders in which run directories lie."""
        rules = self._rules("", (".git/info/exclude",))
        files, left = self._folder("", rules)
        self.files = sorted(files, key=lambda found: found.path)
        self.left = sorted(left, key=lambda each: each.path)

    def _folder(self, folder: str, rules: list[Rule]) -> tuple[list[Found], list[Left]]:
        """Return the code below a folder and what of it is left, `folder` with a `/` at its end unless it is the root."""
        rules = rules + self._rules(folder, RULE_FILES)
        files: list[Found] = []
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
                    left.append(Left(path, "is ignored"))
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

    def _below(self, path: str, rules: list[Rule]) -> tuple[list[Found], list[Left]]:
        here = os.path.join(self._root, path)
        if os.path.realpath(here) in self._leave:
            return [], []  # not even led to: it holds the copies themselves
        if os.path.lexists(os.path.join(here, "journal.jsonl")):
            self._of_runs.add(path.rpartition("/")[0])
            return [], []  # a run directory of ours, with copies of its own
        if os.path.lexists(os.path.join(here, "pyvenv.cfg")):
            return [], [Left(path, "is a virtual environment")]
        try:
            files, left = self._folder(f"{path}/", rules)
        except CodeError as error:
            if isinstance(error, TooMuchError):
                raise
            return [], [Left(path, "cannot be read")]
        if all(is_weak(found.path) for found in files):
            return [], [] if path in self._of_runs else [Left(path, "holds no code")]
        return files, left

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

    def _one(self, entry: os.DirEntry[str], path: str, files: list[Found], left: list[Left]) -> None:
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

    def _link(self, entry: os.DirEntry[str], path: str) -> tuple[Found | None, str]:
        target = os.readlink(entry.path)
        why = why_no_link(path, target)
        status = os.stat(entry.path)  # a link to nothing raises
        is_code = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and self._is_code(path, entry.path))
        if why or not is_code:
            return None, why or "is a link to no code"
        return Found(path, b"", status, target), ""

    def _file(self, entry: os.DirEntry[str], path: str) -> tuple[Found | None, str]:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return None, "is no file"
        if status.st_size > self._limits.largest_file_bytes:
            return None, f"is larger than {self._limits.largest_file_bytes >> 10} KiB"
        if not self._is_code(path, entry.path):
            return None, "is no code"
        data = read_file(entry.path, self._limits.largest_file_bytes)
        if data is None:
            return None, "is larger than it says"
        if b"\0" in data[:LOOKED_AT_BYTES]:
            return None, "is binary"
        return Found(path, data, status), ""

    def _is_code(self, path: str, full: str) -> bool:
        if path in self._always:
            return True
        ending = os.path.splitext(path)[1].lower()
        if ending:
            return ending in _ENDINGS
        name = path.rpartition("/")[2]
        return name in RULE_FILES or name == "Makefile" or (read_file(full, 2, part=True) == b"#!")

    def _rules(self, folder: str, names: tuple[str, ...]) -> list[Rule]:
        rules: list[Rule] = []
        for name in names:
            try:
                data = read_file(os.path.join(self._root, folder, name), LARGEST_RULES_BYTES)
            except OSError:
                continue
            rules += parse(data.decode(errors="replace"), folder) if data is not None else []
        return rules


def is_weak(path: str) -> bool:
    """Whether a path may as well be what a program writes as what people configure it by."""
    folders = path.split("/")[:-1]
    return os.path.splitext(path)[1].lower() in WEAK_ENDINGS and not CONFIG_FOLDERS.intersection(folders)


def read_file(path: str, most_bytes: int, *, part: bool = False) -> bytes | None:
    """Return what a file holds, None if that is more than allowed (with `part`: its beginning). Raises OSError.

    Never waits: what became a pipe or a device meanwhile is refused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path!r} is no file")
        pieces, size = [], 0
        while size <= most_bytes:
            piece = os.read(descriptor, min(most_bytes + 1 - size, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
    finally:
        os.close(descriptor)
    data = b"".join(pieces)
    if part:
        return data[:most_bytes]
    return data if size <= most_bytes else None
