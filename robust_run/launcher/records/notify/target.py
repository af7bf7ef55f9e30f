"""From what --notify says to where a notice goes. Secrets are never shown: of a URL its host, of a command its name. Pure."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

import msgspec

from robust_run.errors import UserError

#: What stands for the secret part of an address.
HIDDEN = "..."


class NotifyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a notice goes: a webhook, or a command."""

    url: str = ""
    argv: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """What people may see of it."""
        return shown(self.url) if self.url else _program(self.argv[0])


def parse(text: str) -> NotifyTarget:
    """Return the target that --notify names. Raises UserError, which shows nothing that may be a secret."""
    text = text.strip()
    if "://" in text.split(" ", 1)[0]:
        return NotifyTarget(url=_checked(text))
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"--notify: the command cannot be read: {error}; quote its arguments as for a shell") from None
    if not argv or "\0" in text:
        raise UserError("--notify: it is empty; give http://..., https://... or a command")
    return NotifyTarget(argv=argv)


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or not url.isascii() or any(not char.isprintable() or char == " " for char in url):
        raise UserError(
            f"--notify {shown(url)!r}: it is no address; give http://HOST/PATH, https://HOST/PATH or a command"
        )
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"--notify {shown(url)!r}: a name or password before @ would not be sent; give a webhook whose path or query "
            "holds its secret, or a command that sends it (curl)"
        )
    return url


def shown(text: str) -> str:
    """Return what may be logged of a target as typed: the path of a file, scheme and host, or the command's name."""
    if text.startswith("@"):
        return text
    if "://" in text.split(" ", 1)[0]:
        try:
            parts = urlsplit(text.strip())
            host = parts.hostname or ""
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return HIDDEN
        return f"{parts.scheme}://{host}{port}/{HIDDEN}" if host else f"{parts.scheme}://{HIDDEN}"
    name = text.split(maxsplit=1)
    if not name:
        return text
    return f"{_program(name[0])} {HIDDEN}" if len(name) > 1 else _program(text)


def named(text: str, number: int, count: int) -> str:
    """Return what messages call a target as typed; `number` (from 1) of `count` tells those apart that look alike."""
    which = f"target {number} of {count}, " if count > 1 else ""
    return f"{which}{shown(text.strip())}"


def _program(word: str) -> str:
    """Return a command's name; a variable that was put before it, as for a shell, without its value."""
    variable, equals, _ = word.partition("=")
    return f"{variable}={HIDDEN}" if equals else word


def is_hidden(text: str) -> bool:
    """Whether this is what `shown` made: a journal holds it, and nothing can be sent there."""
    return text == HIDDEN or text.endswith((f"/{HIDDEN}", f" {HIDDEN}", f"={HIDDEN}"))
