"""The options of `sbatch`, read as sbatch reads them. Pure.

Names and short letters are those of sbatch 22.05 to 24.11 (its manual page). An option that is not among them is passed on
as it was typed: newer versions know more.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.errors import UserError

MOST_OPTIONS = 1000
LONGEST_VALUE = 4096
FLAGS = frozenset(
    "contiguous get-user-env hold help ignore-pbs no-kill no-requeue overcommit oversubscribe parsable quiet reboot requeue "
    "spread-job stepmgr test-only usage use-min-nodes verbose version wait exclusive nice propagate".split()
)
"""Options without a value, or whose value, if any, follows an = sign."""
LETTERS = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold", "i": "input",
    "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters", "n": "ntasks", "N": "nodes",
    "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet", "s": "oversubscribe", "S": "core-spec",
    "t": "time", "v": "verbose", "V": "version", "w": "nodelist", "W": "wait", "x": "exclude",
}  # fmt: skip
NAMES = (
    FLAGS
    | frozenset(LETTERS.values())
    | frozenset(
        (
            "acctg-freq batch bb bbf cluster-constraint comment consolidate-segments container container-id core-spec "
            "cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot export export-file extra gid gpu-bind gpu-freq "
            "gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint kill-on-invalid-dep mail-type mail-user "
            "mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network ntasks-per-core ntasks-per-gpu ntasks-per-node "
            "ntasks-per-socket oom-kill-step open-mode power prefer priority profile reservation resv-ports "
            "segment signal sockets-per-node switches thread-spec threads-per-core time-min tmp tres-bind "
            "tres-per-task uid wait-all-nodes wckey wrap"
        ).split()
    )
)


class Option(msgspec.Struct, frozen=True):
    """One option by its whole name, without dashes; `value` is None for one that was given none."""

    name: str
    value: str | None = None

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def read_options(words: Sequence[str]) -> tuple[Option, ...]:
    """Read options as typed. Raises UserError for a word that is none, and for what no line of a script can hold."""
    if len(words) > MOST_OPTIONS:
        raise UserError(f"{len(words)} sbatch options are more than {MOST_OPTIONS}: give less")
    left, found = list(words), []
    while left:
        word = left.pop(0)
        if word.startswith("--") and len(word) > 2:
            found.append(_long(word[2:], left))
        elif word.startswith("-") and len(word) > 1:
            found += _short(word[1:], left)
        else:
            raise UserError(
                f"{word!r} is no sbatch option: write sbatch options, then --, then robust-run and its words"
            )
    for option in found:
        _check_writable(option)
    return tuple(found)


def _long(text: str, left: list[str]) -> Option:
    name, equals, value = text.partition("=")
    name = _whole_name(name)
    if equals:
        return Option(name, value)
    if name in FLAGS or not left or (name not in NAMES and left[0].startswith("-")):
        return Option(name)
    return Option(name, left.pop(0))


def _short(letters: str, left: list[str]) -> list[Option]:
    found = []
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in LETTERS:
            raise UserError(f"-{letter} is no option of sbatch that we know: write its long name")
        name = LETTERS[letter]
        if name in FLAGS:
            found.append(Option(name))
        elif letters or left:
            value, letters = letters or left.pop(0), ""
            found.append(Option(name, value))
        else:
            raise UserError(f"-{letter} (--{name}) needs a value")
    return found


def _whole_name(name: str) -> str:
    """Return the name that sbatch makes of an abbreviation; the name itself if it makes none."""
    meant = {known for known in NAMES if known.startswith(name)}
    return meant.pop() if len(meant) == 1 and name not in NAMES else name


def _check_writable(option: Option) -> None:
    text = str(option)
    if not text.isprintable():
        raise UserError(
            f"--{option.name!a} {option.value!a}: a line break or another control character cannot be in a script"
        )
    if len(text) > LONGEST_VALUE:
        raise UserError(f"--{option.name}: {len(text)} characters are more than {LONGEST_VALUE}; give less")
    if not option.name.replace("-", "").replace("_", "").isalnum():
        raise UserError(f"--{option.name} is no name of an option")


def last_value(options: Sequence[Option], *names: str) -> str | None:
    """Return the value that counts: of the last option with one of these names; None if there is none."""
    found = [option.value for option in options if option.name in names and option.value is not None]
    return found[-1] if found else None


def has(options: Sequence[Option], *names: str) -> bool:
    """Whether one of these options was given."""
    return any(option.name in names for option in options)
