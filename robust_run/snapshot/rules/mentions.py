"""What set-up commands and requirement files name: files, folders, indexes, and whether each requirement is one version. Pure.

Commands are read as a shell would split them, no variable is expanded: a file that a script opens by itself is not seen.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Literal

import msgspec

Role = Literal["requirements", "editable", "file", "links", "index", "requirement"]
_OPTIONS: dict[str, Role] = {
    "-r": "requirements", "--requirement": "requirements", "--requirements": "requirements",
    "-c": "requirements", "--constraint": "requirements", "--constraints": "requirements", "--override": "requirements",
    "-e": "editable", "--editable": "editable",
    "-f": "links", "--find-links": "links",
    "-i": "index", "--index-url": "index", "--extra-index-url": "index", "--index": "index", "--default-index": "index",
}  # fmt: skip
_INSTALLERS = re.compile(r"(?:.*/)?(?:pip[0-9.]*|uv|conda|mamba|micromamba)$")
_OPERATORS = frozenset((";", "&&", "||", "|", "&", "(", ")", "{", "}", ";;", "|&"))
_ONE_VERSION = re.compile(r"^[^#;]*(?:===|==)\s*[^*,\s;]+\s*(?:;|--hash|#|\\|$)")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[^\]]*\])?\s*(?:[=<>!~;@].*)?")
#: Options of `pip install` and `uv pip install` that take a value of no interest here.
_VALUED = frozenset(
    "--target -t --prefix --root --src --python --platform --python-version --implementation --abi --cache-dir --progress-bar"
    " --upgrade-strategy --config-settings -C --global-option --no-binary --only-binary --use-feature --timeout --retries"
    " --proxy --cert --client-cert --trusted-host --log --report -p --index-strategy --resolution --exclude-newer --link-mode"
    " --keyring-provider".split()
)


class Mention(msgspec.Struct, frozen=True):
    """One thing that is named."""

    role: Role
    text: str
    """As written: relative paths are relative to the working directory, or to the requirement file's folder."""


def in_command(command: str) -> Iterator[Mention]:
    """Yield what a command line names. A word that is no option of an installer may be a file: who asks must look."""
    for words in _simple_commands(command):
        installs = any(_INSTALLERS.fullmatch(word) for word in words[:4]) and ("install" in words or "sync" in words)
        yield from _mentions(words, installs)


def _simple_commands(command: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        words = list(lexer)
    except ValueError:  # an open quote: the shell will say so
        words = command.split()
    simple: list[str] = []
    for word in words:
        if word in _OPERATORS:
            yield simple
            simple = []
        else:
            simple.append(word)
    yield simple


def _mentions(words: list[str], installs: bool) -> Iterator[Mention]:
    rest = iter(words)
    started = not installs
    for word in rest:
        role, value = _option(word) if installs else (None, "")
        if role is not None:
            yield Mention(role, value or next(rest, ""))
        elif installs and word in _VALUED:
            next(rest, None)
        elif word in ("install", "sync"):
            started = True
        elif not word.startswith("-"):
            yield Mention("requirement" if installs and started and not _is_path(word) else "file", word)


def _option(word: str) -> tuple[Role | None, str]:
    """Split `--option=value` and `-rvalue`."""
    name, equals, value = word.partition("=")
    if name in _OPTIONS:
        return _OPTIONS[name], value if equals else ""
    if len(word) > 2 and word[:2] in _OPTIONS and word[1] != "-":
        return _OPTIONS[word[:2]], word[2:]
    return None, ""


def in_requirements(text: str) -> Iterator[Mention]:
    """Yield what a requirement or constraint file names."""
    for raw in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        line = _COMMENT.sub("", raw).strip()
        if not line:
            continue
        first, _, rest = line.partition(" ")
        role, value = _option(first)
        if role is not None:
            yield Mention(role, (value or rest).strip().strip("'\""))
        elif line.startswith("-"):
            continue  # its bytes are in the key anyway
        else:
            yield Mention("requirement", line)


def local_path(text: str) -> str | None:
    """Return the path that a requirement, link or file may name on this machine; None: it is none."""
    _, at, url = text.partition(" @ ")
    place = (url if at else text).split(" ;")[0].split(" --")[0].strip()
    if place.startswith("file://"):
        import urllib.parse

        return urllib.parse.unquote(urllib.parse.urlsplit(place).path) or None
    if "://" in place or not place:
        return None
    return re.sub(r"\[[A-Za-z0-9,._ -]*\]$", "", place) or None


def _is_path(word: str) -> bool:
    bare = re.sub(r"\[[^\]]*\]$", "", word)
    return (
        bare in (".", "..") or "/" in bare or bare.endswith((".whl", ".gz", ".zip", ".bz2", ".txt", ".toml", ".lock"))
    )


def is_pinned(requirement: str) -> bool:
    """Whether a requirement allows one version only: `==`, a URL or a path (whose bytes are in the key)."""
    if _is_path(requirement.split(" ", maxsplit=1)[0]) or " @ " in requirement:
        return "git+" not in requirement or re.search(r"@[0-9a-f]{40}\b", requirement) is not None
    if "://" in requirement:
        return re.search(r"@[0-9a-f]{40}\b", requirement) is not None or "git+" not in requirement
    return _NAME.fullmatch(requirement.strip()) is None or _ONE_VERSION.match(requirement) is not None
