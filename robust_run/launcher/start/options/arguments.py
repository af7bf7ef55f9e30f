"""Spellings: turns what was typed into one canonical form, by the rules of argparse that users of torchrun rely on.

- `-` and `_` in long names are the same; a long name may be cut short while only one option can be meant.
- `--name value`, `--name=value`, `-r 3`, `-r3`, `-r=3`, `-mr3`.
- `--name[=value]`, of which there is one: the word after it is never its value.
- A value that looks like an option is not a value (`--role --foo`); `--role=--foo` is. A negative number, `-` and a
  word with a blank in it do not look like options.
- The first word that is neither an option nor a value is the script. All that follows is the script's, untouched.
- One `--` may stand before the script or directly after it, and is dropped; the script gets every other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from robust_run.errors import UserError
from robust_run.launcher.start.options.options import HELP, HELP_OPTIONS, OPTIONS, OURS, OptionDescription

_NEGATIVE_NUMBER = re.compile(r"-(\d+|\d*\.\d+)")

_LONG = {option.name: option for option in (*OPTIONS, *HELP_OPTIONS)}
_SHORT = {option.short: option for option in (*OPTIONS, *HELP_OPTIONS) if option.short}


def canonical(argv: Sequence[str]) -> list[str]:
    """Return `argv` (no program name in it) as words `--name` or `--name=value`, then `--`, script and its words.

    `["-h"]`, `["--help"]` or `["--version"]` alone if that was asked for before the script. Without a script there is no `--`.
    Raises UserError for an unknown or ambiguous option, a missing value and a value where none belongs.
    """
    words = list(argv)
    result: list[str] = []
    at = 0
    while at < len(words) and words[at] != "--" and _looks_like_option(words[at]):
        following = words[at + 1] if at + 1 < len(words) else None
        used_following = False
        for option, value_in_word in _split(words[at]):
            if option.group == HELP:
                return ["-h"] if option.short and not words[at].startswith("--") else [f"--{option.name}"]
            used_following = option.needs_value and value_in_word is None
            value = _value_from(option, following) if used_following else value_in_word
            if option.kind == "maybe" and value is None:
                value = option.alone
            result.append(f"--{option.name}" if value is None else f"--{option.name}={value}")
        at += 2 if used_following else 1
    rest = words[at:]
    if rest[:1] == ["--"]:
        del rest[0]
    elif rest[1:2] == ["--"]:
        del rest[1]
    return [*result, "--", *rest] if rest else result


def _value_from(option: OptionDescription, following: str | None) -> str:
    if following is None:
        raise UserError(f"--{option.name}: expected one argument ({option.metavar})")
    if following == "--" or _looks_like_option(following):
        raise UserError(
            f"--{option.name}: expected one argument ({option.metavar}), got {following!r};"
            f" write --{option.name}={following} if that is the value"
        )
    return following


def _looks_like_option(word: str) -> bool:
    if not word.startswith("-") or word == "-":
        return False
    if word.startswith("--"):
        if _candidates(_long_name(word)):
            return True
    elif word[1] in _SHORT:
        return True
    return not _NEGATIVE_NUMBER.fullmatch(word) and " " not in word


def _split(word: str) -> Iterator[tuple[OptionDescription, str | None]]:
    """Yield the options in one word, each with the value that is in the word too."""
    if word.startswith("--"):
        option = _find_long(word)
        equals = word.find("=")
        if equals >= 0 and not option.takes_value:
            raise UserError(f"--{option.name} takes no value, got {word[equals + 1 :]!r}")
        yield option, word[equals + 1 :] if equals >= 0 else None
        return
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in _SHORT:
            raise UserError(_unknown(word) if letter == word[1] else f"unknown option -{letter} in {word!r}")
        option = _SHORT[letter]
        if option.takes_value:
            yield option, letters.removeprefix("=") if letters else None
            return
        if letters.startswith("="):
            raise UserError(f"-{letter} takes no value, got {letters[1:]!r}")
        yield option, None


def _long_name(word: str) -> str:
    return word[2:].split("=", 1)[0].replace("_", "-")


def _candidates(name: str) -> list[OptionDescription]:
    """Return the options a long name can mean. What torchrun takes stays good where an option of ours starts alike."""
    if name in _LONG:
        return [_LONG[name]]
    if not name:
        return []
    matching = [option for option in _LONG.values() if option.name.startswith(name)]
    torchrun_s = [option for option in matching if option.group not in OURS and option.name != "version"]
    return torchrun_s if len(torchrun_s) == 1 else matching


def _find_long(word: str) -> OptionDescription:
    candidates = _candidates(_long_name(word))
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        listed = ", ".join(f"--{option.name}" for option in candidates)
        raise UserError(f"ambiguous option {word.split('=', 1)[0]}: it could be {listed}")
    raise UserError(_unknown(word))


def _unknown(word: str) -> str:
    from difflib import get_close_matches

    name = word.split("=", 1)[0]
    shown = name if name.isprintable() else repr(name)
    near = get_close_matches(name.lstrip("-").replace("_", "-"), _LONG, n=1, cutoff=0.7)
    if near:
        return f"unknown option {shown}; did you mean --{near[0]}?"
    return f"unknown option {shown}; see robust-run --help (options of the script go after the script)"
