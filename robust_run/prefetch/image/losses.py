"""What an image does not keep of what it is made of: how it is found, counted and said. Pure.

squashfs has types, modes and times of every file; what it is used for here leaves out some of the rest. Owners: in a user
namespace, where most workers live, one user exists, and what belonged to another could not be changed with --image-writable (its
owner cannot be copied), nor be removed. So everything belongs to 0:0, which is the worker itself. setuid and setgid bits are of
no use without their owner, and go with him, as chown(2) has it. Device nodes: mounts of images show none. Extended attributes:
mksquashfs takes all of them or none, and most are those of the machine. Times: squashfs has 32 bits for them.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from robust_run.decoders import json_decoder

Kind = Literal["owners", "setuid", "modes", "times", "attributes", "devices"]
#: squashfs has 32 bits for a time, in seconds.
LATEST_S = (1 << 32) - 1
#: Not the image's: the machine labels every file.
_OF_THE_MACHINE = ("security.selinux",)
_MOST_EXAMPLES, _MOST_SAID = 10, 2
_LONGEST_NAME = 80
#: One entry, several.
_SAID: dict[Kind, tuple[str, str]] = {
    "owners": ("the owner of 1 entry becomes 0:0", "the owners of {} entries become 0:0"),
    "setuid": (
        "1 entry loses its setuid or setgid bit with its owner",
        "{} entries lose their setuid or setgid bits with their owners",
    ),
    "modes": ("1 entry becomes readable by its owner", "{} entries become readable by their owners"),
    "times": ("1 entry has a time before 1970 or after 2106", "{} entries have times before 1970 or after 2106"),
    "attributes": (
        "the extended attributes of 1 entry are left out",
        "the extended attributes of {} entries are left out",
    ),
    "devices": ("1 device node is left out", "{} device nodes are left out"),
}
_ORDER: tuple[Kind, ...] = ("owners", "setuid", "modes", "times", "attributes", "devices")


class Original(NamedTuple):
    """What an entry was before it came into an image."""

    mode: int
    """Permissions, with setuid, setgid and sticky bits."""
    time_s: int
    """Of its last modification."""
    uid: int = 0
    gid: int = 0
    attributes: tuple[str, ...] = ()
    """Names of its extended attributes."""
    is_folder: bool = False
    is_device: bool = False

    def kept_mode(self) -> int:
        """Return the mode that it has in an image."""
        if self.is_folder:
            return self.mode
        return self.mode & ~(stat.S_ISUID if self.uid else 0) & ~(stat.S_ISGID if self.gid else 0)


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of thing that an image does not keep."""

    kind: Kind
    count: int
    """Entries of which it is not kept."""
    examples: tuple[str, ...]
    """The first of them, with what it was where that is not plain; printable."""

    def sentence(self) -> str:
        """Return it for people."""
        one, several = _SAID[self.kind]
        said = one if self.count == 1 else several.format(self.count)
        more = ", ..." if self.count > _MOST_SAID else ""
        return f"{said} ({', '.join(self.examples[:_MOST_SAID])}{more})"


class Losses:
    """Counts what is not kept of a tree."""

    def __init__(self, builder: tuple[int, int] = (0, 0)) -> None:
        """`builder`: whose owner and group say nothing, besides root's: of the folder that an image is made of."""
        self._owners = {0, builder[0]}
        self._groups = {0, builder[1]}
        self._found: dict[Kind, tuple[int, list[str]]] = {}

    def note(self, path: str, original: Original) -> None:
        """Count an entry of the tree, once."""
        if original.is_device:
            self.add("devices", path)
            return
        if original.uid not in self._owners or original.gid not in self._groups:
            self.add("owners", path, f"{original.uid}:{original.gid}")
        if original.kept_mode() != original.mode:
            self.add("setuid", path, f"{original.mode:04o}")
        if not 0 <= original.time_s <= LATEST_S:
            self.add("times", path)
        attributes = lasting(original.attributes)
        if attributes:
            self.add("attributes", path, *attributes)

    def add(self, kind: Kind, path: str, *was: str) -> None:
        """Count one entry of a kind."""
        count, examples = self._found.get(kind, (0, []))
        if len(examples) < _MOST_EXAMPLES:
            examples.append(f"{printable(path)}{': ' if was else ''}{' '.join(map(printable, was[:3]))}")
        self._found[kind] = (count + 1, examples)

    def found(self) -> tuple[Loss, ...]:
        """Return what was counted."""
        return tuple(
            Loss(kind=kind, count=self._found[kind][0], examples=tuple(self._found[kind][1]))
            for kind in _ORDER
            if kind in self._found
        )


def lasting(attributes: Iterable[str]) -> tuple[str, ...]:
    """Return the extended attributes that are a file's, and not those that the machine gave it."""
    return tuple(name for name in attributes if name not in _OF_THE_MACHINE)


def sentence(losses: Iterable[Loss]) -> str:
    """Return all that is not kept in one line; "" where everything is."""
    return "; ".join(each.sentence() for each in losses)


def printable(name: str) -> str:
    """Return a name as a terminal and JSON can show it: what is hidden in it is written out, what is long is cut."""
    shown = "".join(letter if letter.isprintable() else _written_out(ord(letter)) for letter in name)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 3]}..."


def _written_out(letter: int) -> str:
    is_byte = letter < 256 or 0xDC80 <= letter <= 0xDCFF  # the latter: one that is no UTF-8
    return f"\\x{letter & 0xFF:02x}" if is_byte else f"\\u{letter:04x}"


# --- What an image does not keep of what it was made of, as JSON beside it: `<image>.origins.json`. None where it lost nothing.
#
# For people: nothing that it says is followed.

_SUFFIX = ".origins.json"
LARGEST_BYTES = 1 << 20


class Origins(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: Literal["robust-origins"] = "robust-origins"
    version: Literal[1] = 1
    sha256: str
    """Of the image that it is about, as its block map has it."""
    lost: tuple[Loss, ...]


def sidecar(image: str) -> str:
    """Return its path or URL. What follows '?' in a URL stays at the end."""
    address, mark, query = image.partition("?") if "://" in image else (image, "", "")
    return f"{address}{_SUFFIX}{mark}{query}"


def encode(origins: Origins) -> bytes:
    """Return the file's bytes."""
    return msgspec.json.encode(origins) + b"\n"


def decode(data: bytes, sha256: str) -> Origins | None:
    """Return what a file says of the image with this sha256; None where it is damaged or about another."""
    try:
        found = json_decoder(Origins).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found.sha256 == sha256 else None
