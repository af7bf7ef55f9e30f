"""What of a folder is not code: the rules of .gitignore and .robustignore files, and what never is. Pure.

The rules are git's (gitignore(5)): the last pattern that matches decides, `!` takes back, a `/` at the end means folders,
one elsewhere ties the pattern to the folder of its file, `**` spans folders. What is below an ignored folder is not looked at.

By hand: the library pathspec lets `[!a]` match a `/`, as git does not, so that code would be left out; it is imported in 30 ms.
"""

from __future__ import annotations

import re

#: Folders that tools make. A user who has code in one of that name takes it back with `!name/` in .robustignore.
NEVER = frozenset(
    ".git .hg .svn .bzr .jj __pycache__ .venv .tox .nox .mypy_cache .pytest_cache .ruff_cache .hypothesis .idea .vscode "
    ".ipynb_checkpoints node_modules site-packages .eggs wandb mlruns lightning_logs tb_logs robust-runs .cache".split()
)

RULE_FILES = (".gitignore", ".robustignore")
LARGEST_RULES_BYTES = 256 << 10
MOST_RULES = 2000


class IgnorePattern:
    """One pattern."""

    __slots__ = ("base", "folders_only", "matches", "takes_back")

    def __init__(self, base: str, pattern: str) -> None:
        """`base`: the folder of its file, relative to the root, with a `/` at its end unless it is the root."""
        self.takes_back = pattern.startswith("!")
        pattern = pattern.removeprefix("!")
        self.folders_only = pattern.endswith("/")
        pattern = pattern.rstrip("/")
        anchored = "/" in pattern
        pattern = pattern.removeprefix("/")
        self.base = base
        self.matches = re.compile(("" if anchored else r"(?:.*/)?") + _expression(pattern) + r"\Z", re.DOTALL).match


def parse(text: str, base: str = "") -> list[IgnorePattern]:
    """Return the rules of a file. Patterns that mean nothing are left out."""
    rules = []
    for line in text.splitlines()[:MOST_RULES]:
        pattern = _stripped(line)
        if not pattern or pattern.startswith("#") or not pattern.strip("!/"):
            continue
        try:
            rules.append(IgnorePattern(base, pattern))
        except re.error:
            continue
    return rules


def is_ignored(rules: list[IgnorePattern], path: str, *, is_folder: bool) -> bool:
    """Whether a path below the root is ignored, its folder not being so."""
    ignored = is_folder and path.rpartition("/")[2] in NEVER
    for rule in rules:
        if rule.folders_only and not is_folder:
            continue
        if path.startswith(rule.base) and rule.matches(path[len(rule.base) :]):
            ignored = not rule.takes_back
    return ignored


def _stripped(line: str) -> str:
    """Return a line without the spaces at its end, except one after a backslash."""
    line = line.rstrip("\r\n")
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    return line


def _expression(pattern: str) -> str:
    """Return a glob of git as a regular expression."""
    at, parts = 0, []
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            parts.append(r"(?:.*/)?")
            at += 3
        elif pattern[at:] == "**" and at > 0 and pattern[at - 1] == "/":
            parts.append(r".+")
            at += 2
        elif char == "*":
            parts.append(r"[^/]*")
            while at < len(pattern) and pattern[at] == "*":
                at += 1
        elif char == "?":
            parts.append(r"[^/]")
            at += 1
        elif char == "[" and (end := pattern.find("]", at + 2)) > 0:
            inner = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            inner = f"^{inner[1:]}" if inner[:1] in "!^" else inner
            parts.append(f"(?!/)[{inner}]")
            at = end + 1
        elif char == "\\" and at + 1 < len(pattern):
            parts.append(re.escape(pattern[at + 1]))
            at += 2
        else:
            parts.append(re.escape(char))
            at += 1
    return "".join(parts)
