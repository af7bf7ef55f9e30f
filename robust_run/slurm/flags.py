"""Which options of srun are missing for a step that survives the loss of a node, as far as that can be seen from inside."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.slurm.scontrol import Answer, fields
from robust_run.slurm.scontrol_client import ScontrolClient

NO_KILL, BAD_EXIT, WAIT = "--no-kill", "--kill-on-bad-exit=0", "--wait=0"

SHORTEST = len("--wa")
"""A name that is cut shorter means none of them."""


class FlagsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the srun that started the step."""

    words: tuple[str, ...] | None = None
    """Its command line; None: it runs on another machine."""
    env: Mapping[str, str]
    """A task's, which has what srun was given as variables."""
    site: Mapping[str, str] = {}
    """`scontrol show config`."""


def missing(seen: FlagsSeen) -> tuple[str, ...]:
    """Return the options that are missing for certain. Pure."""
    words = seen.words
    found = []
    if words is not None and not _has(words, ("--no-kill",), "k"):
        found.append(NO_KILL)
    bad_exit = _value(words, "--kill-on-bad-exit", "K", "1")
    if bad_exit is None:
        bad_exit = seen.env.get("SLURM_KILL_BAD_EXIT", seen.site.get("KillOnBadExit", "0"))
    if bad_exit.strip() not in ("0", ""):
        found.append(BAD_EXIT)
    wait = _value(words, "--wait", "W", "")
    if wait is None:
        wait = seen.env.get("SLURM_WAIT", seen.site.get("WaitTime", "0")).partition(" ")[0]  # "30 sec"
    if wait not in ("0", ""):
        found.append(WAIT)
    return tuple(found)


def advise(aside: ScontrolClient, use: SlurmUse, say: Callable[[str], None]) -> None:
    """Say once which options are missing. Asks Slurm twice; says nothing where nothing is known."""

    def told_step(step: Answer) -> None:
        words = _words_of(fields(step.text).get("SrunHost:Pid", "")) if step.ok else None
        aside.ask(("show", "config"), lambda config: told_site(words, config))

    def told_site(words: tuple[str, ...] | None, config: Answer) -> None:
        site = _settings(config.text) if config.ok else {}
        lacking = missing(FlagsSeen(words=words, env=aside.env, site=site))
        if lacking:
            say(f"Slurm may end this step when it loses a node or an agent; start it with srun {' '.join(lacking)}")

    if use.step:
        aside.ask(("show", "step", f"{use.job}.{use.step}"), told_step)


def _has(words: Sequence[str], long: Sequence[str], short: str) -> bool:
    return any(any(_is_name(word, name) for name in long) or _is_cluster(word, short) for word in words)


def _is_name(word: str, long: str) -> bool:
    """Whether a word is this option, maybe cut short as far as srun takes it."""
    name = word.partition("=")[0]
    return len(name) >= SHORTEST and long.startswith(name)


def _is_cluster(word: str, short: str) -> bool:
    """Whether a word is short options one of which is this, like -lk."""
    return word.startswith("-") and not word.startswith("--") and short in word[1:] and word[1:].isalpha()


def _value(words: Sequence[str] | None, long: str, short: str, alone: str) -> str | None:
    """Return the value of an option, `alone` if it has none, None if it is not there."""
    for index, word in enumerate(words or ()):
        name, _, value = word.partition("=")
        if not _is_name(word, long) and not (word.startswith(f"-{short}") and not word.startswith("--")):
            continue
        value = value if name.startswith("--") else word[2:].lstrip("=")
        following = (words or ())[index + 1 : index + 2]
        return value or (following[0] if not alone and following else alone)
    return None


def _words_of(place: str) -> tuple[str, ...] | None:
    """Return the words of `HOST:PID` up to the program, None if that is not on this machine or cannot be read."""
    host, _, pid = place.rpartition(":")
    if not pid.isdecimal() or host not in (os.uname().nodename, os.uname().nodename.partition(".")[0]):
        return None
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode(errors="replace") for word in file.read(1 << 16).split(b"\0")]
    except OSError:
        return None
    if not words or not words[0].endswith("srun"):
        return None
    return tuple(words[1 : next((at for at, word in enumerate(words) if "robust" in word or "python" in word), None)])


def _settings(text: str) -> dict[str, str]:
    """Return `KEY = VALUE` lines."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}
