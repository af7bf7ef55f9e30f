"""The code of any commit, asked of git. For commands: the launcher starts no git, see `work_tree`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import partial

from robust_run.errors import UserError
from robust_run.launcher.records.code.errors import CodeError
from robust_run.launcher.records.code.ignore import LARGEST_RULES_BYTES, RULE_FILES, is_ignored, parse
from robust_run.launcher.records.code.names import why_no_link, why_not
from robust_run.launcher.records.code.scan import JOURNALS, LOOKED_AT_BYTES, OTHER_REPOSITORY, is_called_code
from robust_run.launcher.records.code.types import LIMITS, Left
from robust_run.launcher.records.code.work_tree import IS_COMMIT, work_tree_of

GIT_S = 60.0


class Commit:
    """The code of one commit below one folder of a work tree: what a look through the folder would take of it, see `scan`."""

    def __init__(self, root: str, ref: str, entry: str = "") -> None:
        """`root`: the folder; `entry`: the script in it. Raises UserError for a commit that is not there (any more)."""
        self._root = root
        self._entry = entry
        self.top = work_tree_of(root)
        if not self.top:
            raise UserError(f"--ref {ref!r}: {root!r} is in no git work tree; give --dir PATH instead")
        if not ref or ref.startswith("-"):
            raise UserError(f"--ref {ref!r} is no name of a commit")
        found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", check=False)
        self.commit = found.stdout.decode().strip()
        if found.returncode != 0 or not IS_COMMIT(self.commit):
            raise UserError(
                f"--ref {ref!r}: there is no such commit in {self.top!r}; git log lists them, git fetch may get it"
            )
        below = os.path.relpath(os.path.realpath(root), os.path.realpath(self.top))
        self._prefix = "" if below == "." else f"{below}/"

    def files(self) -> tuple[list[tuple[str, bytes, bool, str]], list[Left]]:
        """Return (path, content, executable, link) of all that is code, and what is not. Raises CodeError, UserError."""
        listing = self._git("ls-tree", "-r", "-z", "--full-tree", self.commit, "--", self._prefix or ".").stdout
        left: list[Left] = []
        wanted: list[tuple[str, str, str]] = []
        for entry in filter(None, listing.split(b"\0")):
            facts, _, name = entry.partition(b"\t")
            mode, kind, blob = facts.decode().split()
            path = name.decode(errors="surrogateescape").removeprefix(self._prefix)
            why = why_not(path) or (OTHER_REPOSITORY if kind != "blob" else "")
            if why:
                left.append(Left(path, why))
            else:
                wanted.append((path, mode, blob))
        journals = tuple(f"/{name}" for name in JOURNALS)
        runs = tuple(f"{path.rpartition('/')[0]}/" for path, *_ in wanted if path.endswith(journals))
        wanted = [each for each in wanted if not each[0].startswith(runs)]  # a user committed what jobs left behind
        if len(wanted) > LIMITS.most_files:
            raise CodeError(f"commit {self.commit[:10]} has more than {LIMITS.most_files} files below {self._root!r}")
        return self._contents(wanted, left), left

    def _contents(self, wanted: list[tuple[str, str, str]], left: list[Left]) -> list[tuple[str, bytes, bool, str]]:
        sizes = self._git(
            "cat-file", "--batch-check=%(objectsize)", stdin="".join(f"{blob}\n" for *_, blob in wanted).encode()
        ).stdout.split()
        if len(sizes) != len(wanted):
            raise CodeError(f"git lacks some of commit {self.commit[:10]} (a partial clone?); git fetch may get it")
        small: list[tuple[str, str, str, int]] = []
        for (path, mode, blob), size in zip(wanted, sizes, strict=True):
            if not size.isdigit() or int(size) > LIMITS.largest_file_bytes:
                left.append(Left(path, f"is larger than {LIMITS.largest_file_bytes >> 10} KiB, or missing"))
            else:
                small.append((path, mode, blob, int(size)))
        if sum(each[3] for each in small) > LIMITS.most_bytes:
            raise CodeError(
                f"commit {self.commit[:10]} has more than {LIMITS.most_bytes >> 20} MiB below {self._root!r}"
            )
        batch = self._git("cat-file", "--batch", stdin="".join(f"{each[2]}\n" for each in small).encode()).stdout
        files: list[tuple[str, bytes, bool, str]] = []
        at = 0
        for path, mode, _, length in small:
            start = batch.index(b"\n", at) + 1
            data = batch[start : start + length]
            at = start + length + 1
            link = data.decode(errors="surrogateescape") if mode == "120000" else ""
            if link and why_no_link(path, link):
                left.append(Left(path, why_no_link(path, link)))
            elif not link and path != self._entry and not is_called_code(path, partial(bytes, data)):
                left.append(Left(path, "is no code"))
            elif b"\0" in data[:LOOKED_AT_BYTES]:
                left.append(Left(path, "is binary"))
            else:
                files.append((path, b"" if link else data, mode == "100755", link))
        return self._not_ignored(files, left)

    def _not_ignored(
        self, files: list[tuple[str, bytes, bool, str]], left: list[Left]
    ) -> list[tuple[str, bytes, bool, str]]:
        """Return the files that the commit's own rules do not ignore; ignored ones may have been committed all the same."""
        of_rules = [(path, data) for path, data, *_ in files if path.rpartition("/")[2] in RULE_FILES]
        of_rules.sort(key=lambda each: (each[0].count("/"), each[0]))
        rules = [
            rule
            for path, data in of_rules
            for rule in parse(data[:LARGEST_RULES_BYTES].decode(errors="replace"), path[: path.rfind("/") + 1])
        ]
        taken = []
        for file in files:
            parts = file[0].split("/")
            ignored = any(
                is_ignored(rules, "/".join(parts[:depth]), is_folder=depth < len(parts))
                for depth in range(1, len(parts) + 1)
            )
            if ignored and file[0] != self._entry:
                left.append(Left(file[0], "is ignored"))
            else:
                taken.append(file)
        return taken

    def _git(self, *words: str, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return run_git(self.top, words, stdin=stdin, check=check)


def run_git(
    top: str, words: Sequence[str], *, stdin: bytes = b"", check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a work tree. Raises UserError where there is none, or it refuses."""
    argv = ["git", "-C", top, "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *words]
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=GIT_S, check=False)
    except FileNotFoundError as error:
        raise UserError("--ref needs git, which is not installed here; give --dir PATH instead") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"git {words[0]} in {top!r} failed: {error}") from error
    if check and done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise UserError(f"git {words[0]} in {top!r} failed: {said[-1] if said else f'exit code {done.returncode}'}")
    return done
