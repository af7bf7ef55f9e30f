"""Where a checkpoint lies: a folder on its primary target and the roots of its other targets. Pure.

Spelt as a path (`/ssd0/run/step-4000`), as the URL of a folder (`hdfs://nn/run/step-4000`), or with further targets, as
`rrck:///ssd0/run/step-4000?also=/ssd1/run&also=hdfs://nn/run`. After `rrck://` comes the path or URL of the primary folder;
percent signs, question marks, `&` and `+` in it, and in each `also`, are percent-encoded.
"""

from __future__ import annotations

import os
import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from robust_run.ckpt_io.seen import step_said
from robust_run.errors import UserError
from robust_run.store import paths

_PREFIX = "rrck://"
URL_BYTES = 4096
#: Schemes whose URLs are percent-encoded; in others a name stands as it is.
_QUOTED = ("file", "http", "https")


@dataclass(frozen=True)
class Address:
    """A checkpoint's folder, and where else its parts lie."""

    url: str
    """Path or URL of the checkpoint's folder on the primary target, without "/" at its end."""
    also: tuple[str, ...] = ()
    """Roots of the other targets: the checkpoint lies in the folder of the same name there."""

    @property
    def root(self) -> str:
        """What the checkpoint's folder lies in."""
        return split(self.url)[0]

    @property
    def name(self) -> str:
        """The checkpoint's name: the last part of its path."""
        return split(self.url)[1]

    @property
    def folders(self) -> tuple[str, ...]:
        """The checkpoint's folder on each target, the primary first."""
        return (self.url, *(join(root, self.name) for root in self.also))


def unmounted(path: str, env: Mapping[str, str]) -> str:
    """Return the URL of what a worker is shown as files (`robust-run --ckpt-mount`); of another path: itself.

    What is read with this library is read from where it lies: there are no manifests among the files.
    """
    folder, top = env.get("ROBUST_CKPT_MOUNTED", ""), env.get("ROBUST_CKPT_DIR", "")
    if not folder or "://" in path or "://" not in top:
        return path
    below = os.path.relpath(os.path.abspath(path), folder)
    if below == os.pardir or below.startswith(f"{os.pardir}/"):
        return path
    for name in below.split("/") if below != os.curdir else ():
        top = join(top, name)
    return top


def parse(text: str, also: tuple[str, ...] = (), env: Mapping[str, str] = os.environ) -> Address:
    """Read an address as typed; `also` comes after the targets that it names itself. `env`: see `unmounted`.

    Raises:
        UserError: It has no name, unknown query fields, two targets in one folder, or is longer than 4096 bytes.
    """
    if len(text.encode(errors="replace")) > URL_BYTES or "\0" in text:
        raise UserError(f"address {text[:80]!r}...: longer than {URL_BYTES} bytes, or with a NUL in it")
    url, roots = text, also
    if text.startswith(_PREFIX):
        spelt, _, query = text.removeprefix(_PREFIX).partition("?")
        url, roots = unquote(spelt), (*_also(query, text), *also)
    address = Address(normal(unmounted(url, env)), tuple(normal(root) for root in roots))
    if len(set(address.folders)) != len(address.folders):
        raise UserError(f"address {text}: two targets are the same folder; give each target a root of its own")
    return address


def normal(url: str) -> str:
    """Return a path as absolute path and a URL without "/" at its end.

    Raises:
        UserError: It is empty, or has a part that is "..".
    """
    scheme = paths.scheme_of(url)
    if not url or scheme == "rrck":
        raise UserError(f"address {url!r}: a path or the URL of a folder is needed here")
    if not scheme:
        return os.path.abspath(url)
    start, rest, query = _cut(url)
    if ".." in unquote(rest).split("/"):
        raise UserError(f"address {paths.shown(url)!r}: no part of it may be '..'")
    return start + (rest.rstrip("/") or rest) + query


def join(root: str, name: str) -> str:
    """Return the folder `name` in `root`."""
    return paths.child(root, name)


def split(url: str) -> tuple[str, str]:
    """Return root and name.

    Raises:
        UserError: There is no name, as in "/" or "hdfs://nn".
    """
    start, rest, query = _cut(url)
    root, slash, name = rest.rstrip("/").rpartition("/")
    name = unquote(name) if paths.scheme_of(url) in _QUOTED else name
    if not slash or not paths.is_clean(name) or "/" in name:
        raise UserError(
            f"address {paths.shown(url)!r}: names no checkpoint; a folder and a name are needed, as in /ckpt/step-100"
        )
    return start + (root or "/") + query, name


def origin(url: str) -> tuple[str, str]:
    """Return scheme and host; of a path, ("file", "")."""
    scheme = paths.scheme_of(url) or "file"
    return scheme, "" if scheme == "file" else paths.host_of(url)


def _cut(url: str) -> tuple[str, str, str]:
    """Return what stands before the path ("hdfs://"), the path with the host, and the query of a URL over HTTP."""
    scheme = paths.scheme_of(url)
    start = len(scheme) + len("://") if scheme else 0
    end = url.find("?") if scheme in ("http", "https") else -1
    end = len(url) if end < 0 else end
    return url[:start], url[start:end], url[end:]


def _also(query: str, text: str) -> tuple[str, ...]:
    roots = []
    for field in query.split("&") if query else ():
        key, equals, value = field.partition("=")
        if key != "also" or not equals or not value:
            raise UserError(f"address {text}: {field!r} is not known; after '?' there may be also=ROOT, parted by '&'")
        roots.append(unquote(value))
    return tuple(roots)


# --- What a `checkpoint_id` may be, and what its name says. Pure.


def is_valid(checkpoint_id: object) -> bool:
    """Whether it is a path or URL that a checkpoint can have."""
    if not isinstance(checkpoint_id, (str, os.PathLike)):
        return False
    spelt = os.fspath(checkpoint_id)
    if not isinstance(spelt, str):
        return False
    try:
        _ = parse(spelt).name  # that there is one
    except UserError:
        return False
    return True


def step_of(checkpoint_id: str | os.PathLike[str]) -> int | None:
    """Return the training step that a checkpoint's name ends with, as in `run/step-4000`; None where it says none."""
    return step_said(parse(os.fspath(checkpoint_id)).name)
