"""From named ingredients to a key, and why two keys differ. Pure."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable

import msgspec

from robust_run.snapshot.errors import SetupRefused
from robust_run.snapshot.rules.types import Difference, Ingredient, Key

SHOWN_CHARACTERS = 200
_DOMAIN = b"robust snapshot key 1\n"
#: user:password@ of a URL; the user part alone may be a token, too.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s'\"]+@")
_SECRET_PARAMETERS = re.compile(
    r"(?i)([?&](?:[a-z-]*(?:token|signature|password|secret|credential|key)[a-z-]*|sig)=)[^&\s'\"]+"
)


def ingredient(name: str, content: bytes | str, shown: str | None = None) -> Ingredient:
    """Return one ingredient. `shown` is for people; without it, the content itself if it is text."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    if shown is None:
        shown = content if isinstance(content, str) else f"{len(content)} bytes"
    text = " ".join(blanked(shown).split())
    if len(text) > SHOWN_CHARACTERS:
        text = text[: SHOWN_CHARACTERS - 1] + "…"
    safe = text.encode("utf-8", "replace").decode()
    return Ingredient(name=name, digest=hashlib.sha256(data).hexdigest(), shown=safe)


def blanked(text: str) -> str:
    """Return a command or URL without credentials: they may change without changing what is installed."""
    return _SECRET_PARAMETERS.sub(r"\1", _CREDENTIALS.sub("", text))


def make(ingredients: Iterable[Ingredient]) -> Key:
    """Return the key of ingredients, the same in any order. Raises `SetupRefused` for two of one name."""
    ordered = tuple(sorted(ingredients, key=lambda item: item.name))
    for one, other in itertools.pairwise(ordered):
        if one.name == other.name:
            raise SetupRefused(f"ingredient {one.name!r} is there twice: give each command and file once")
    return Key(digest=digest_of(ordered), ingredients=ordered)


def digest_of(ordered: Iterable[Ingredient]) -> str:
    """Return the digest over ingredients that are ordered by name. What is shown of them is not part of it."""
    named = [[item.name.encode("utf-8", "surrogateescape").hex(), item.digest] for item in ordered]
    return hashlib.sha256(_DOMAIN + msgspec.json.encode(named)).hexdigest()


def explain(key: Key) -> list[str]:
    """Return a line for the key and one for each ingredient, so that a miss can be understood."""
    width = max((len(item.name) for item in key.ingredients), default=0)
    lines = [f"{item.name:<{width}}  {item.digest[:16]}  {item.shown}" for item in key.ingredients]
    return [f"key {key.digest}", *lines]


def compare(here: Key, there: Key) -> list[Difference]:
    """Return the ingredients in which two keys differ, by name. Empty: they are the same key."""
    ours = {item.name: item for item in here.ingredients}
    theirs = {item.name: item for item in there.ingredients}
    found = []
    for name in sorted({*ours, *theirs}):
        one, other = ours.get(name), theirs.get(name)
        if one is not None and other is not None and one.digest == other.digest:
            continue
        found.append(Difference(name=name, here=_shown(one, other), there=_shown(other, one)))
    return found


def _shown(item: Ingredient | None, other: Ingredient | None) -> str | None:
    """Two that look alike (long, or with a credential) are told apart by their digests."""
    if item is None:
        return None
    if other is not None and item.shown == other.shown:
        return f"{item.shown} ({item.digest[:16]})"
    return item.shown
