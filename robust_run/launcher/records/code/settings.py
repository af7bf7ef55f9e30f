"""Arguments and variables that an update changes: `--set lr=1e-4` finds its place on the script's command line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from robust_run.errors import UserError

LONGEST_VALUE = 4096
MOST_SETTINGS = 200

#: Variables that are the launcher's, or would change which Python runs: no update sets them.
OURS = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR "
    "MASTER_PORT PYTHONPATH PYTHONHOME PYTHONSAFEPATH PATH LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT".split()
)
OUR_PREFIXES = ("TORCHELASTIC_", "ROBUST_", "PET_")


def parse_pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """Return `K=V` words as a mapping. Raises UserError."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip("-") or not name.isprintable() or any(char.isspace() for char in name):
            raise UserError(f"{option} {word!r}: must be NAME=VALUE")
        if len(word) > LONGEST_VALUE or "\0" in word:
            raise UserError(f"{option} {name[:80]!r}: longer than {LONGEST_VALUE} characters, or with a NUL")
        if name in pairs:
            raise UserError(f"{option} {name!r} is given twice")
        pairs[name] = value
    if len(pairs) > MOST_SETTINGS:
        raise UserError(f"{option} is given {len(pairs)} times; {MOST_SETTINGS} is the limit")
    return pairs


def check_variables(env: Mapping[str, str]) -> None:
    """Raise UserError for a variable that no update may set."""
    for name in env:
        if name in OURS or name.startswith(OUR_PREFIXES):
            raise UserError(f"--env {name}: this variable is the launcher's, and no update changes it; start a new job")


def with_arguments(words: Sequence[str], changes: Mapping[str, str]) -> tuple[str, ...]:
    """Return a script's arguments with these set: in their place where they are there, else at the end.

    `lr` stands for `--lr V`, `--lr=V`, `-lr V` and `lr=V` (as hydra has it), with `-` and `_` alike. What is new gets the form
    of the others: `lr=V` where there are such and no options, else `--lr=V`.
    """
    result = list(words)
    for name, value in changes.items():
        if not _replace(result, name, value):
            result.append(_new(result, name, value))
    return tuple(result)


def _replace(words: list[str], name: str, value: str) -> bool:
    """Set the last of this name, which is the one that counts; others of it too, so that none contradicts."""
    found = False
    at = 0
    while at < len(words):
        word = words[at]
        head, equals, _ = word.partition("=")
        if _same(head, name) and equals:
            words[at] = f"{head}={value}"
            found = True
        elif word.startswith("-") and _same(word, name):
            if at + 1 < len(words) and not _is_option(words[at + 1]):
                words[at + 1] = value
                at += 1
            else:
                words[at] = f"{word}={value}"
            found = True
        at += 1
    return found


def _is_option(word: str) -> bool:
    """Whether a word is an option, not the value of the one before: `-1e-4` is a value."""
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] not in ("", ".")


def _same(typed: str, name: str) -> bool:
    return _folded(typed) == _folded(name) and (not name.startswith("-") or typed.startswith("-"))


def _folded(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _new(words: Sequence[str], name: str, value: str) -> str:
    if name.startswith("-"):
        return f"{name}={value}"
    options = any(word.startswith("-") for word in words)
    bare = any("=" in word and not word.startswith("-") for word in words)
    return f"{name}={value}" if bare and not options else f"--{name}={value}"
