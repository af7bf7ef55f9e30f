"""Which records a file of torch.save names and does not have. Pure; nothing is unpickled.

torch.save writes a zip archive: `<archive>/data.pkl` first, which names storages by their keys, then a record
`<archive>/data/<key>` for each of them. An exception that unwinds it (Ctrl-C, a SIGTERM handler that calls `sys.exit`) has it
write the archive's directory all the same: a valid zip archive that no torch.load takes.

What a healthy save looks like is the larger part of this: archives of torch.jit, torch.package and torch.export, whose records
are others; storages without bytes; pickles of other protocols. Of anything that is not exactly understood, nothing is said.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Callable, Sequence

#: A longer pickle is believed: it takes about a second to look at 4 MiB.
PICKLE_LIMIT_BYTES = 64 << 20
_LOCAL_HEADER_BYTES = 30
#: What every archive of torch has, also one that was begun and left.
_ALWAYS = frozenset(("version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"))
_BEGUN = frozenset(("version", ".data/serialization_id"))
#: Records that show an archive of torch.jit or torch.package.
_OTHERS = ("constants.pkl", ".data/extern_modules", ".data/version")
_STORAGE_FIELDS = 5
Read = Callable[[int, int], bytes]


def missing_records(read: Read, size_bytes: int) -> str:
    """Return what a zip archive of torch.save lacks, in words; empty if nothing, or if it is none. Raises what `read` raises."""
    try:
        with zipfile.ZipFile(io.BufferedReader(_Window(read, size_bytes))) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError):
        return ""  # a valid one of a kind that is not known here
    root = entries[0].filename.partition("/")[0] + "/" if entries else ""
    names = {entry.filename.removeprefix(root): entry for entry in entries if entry.filename.startswith(root)}
    if not root or len(names) != len(entries) or any(name in names for name in _OTHERS):
        return ""
    if "data.pkl" not in names:
        is_begun = names.keys() >= _BEGUN and names.keys() <= _ALWAYS
        return "it is an archive of torch.save in which nothing was saved" if is_begun else ""
    keys = _storage_keys(read, names["data.pkl"])
    missing = [key for key in keys if f"data/{key}" not in names]
    return f"it is a file of torch.save without {len(missing)} of its {len(keys)} storages" if missing else ""


def _storage_keys(read: Read, entry: zipfile.ZipInfo) -> Sequence[str]:
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > PICKLE_LIMIT_BYTES:
        return ()
    header = read(entry.header_offset, _LOCAL_HEADER_BYTES)
    behind = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return storage_keys(read(entry.header_offset + _LOCAL_HEADER_BYTES + behind, entry.file_size))


def storage_keys(data: bytes) -> Sequence[str]:
    """Return the keys of storages that have bytes, in the order of a pickle that names them.

    Of one that names anything in a way that is not understood: none.
    """
    names = _Names()
    try:
        for operation, value, _ in pickletools.genops(data):
            names.see(operation.name, value)
    except Exception:  # of many kinds: no pickle, or one that is not understood
        return ()
    return tuple(names.keys)


class _Names:
    """Follows a pickle as far as names of storages need it: MARK "storage" TYPE KEY LOCATION ELEMENTS TUPLE BINPERSID."""

    def __init__(self) -> None:
        self.keys = dict[str, None]()
        self._memo = dict[int, object]()
        self._top: object = None
        """What was pushed last, if it is text or a number."""
        self._fields: list[object] | None = None
        """What follows the last MARK; None: more than a storage's name has."""
        self._name: list[object] | None = None
        """The tuple that was just made."""

    def see(self, operation: str, value: object) -> None:
        """Take the next operation. Raises ValueError for a name that is not understood."""
        match operation:
            case "PROTO" | "FRAME":
                pass
            case "BINPUT" | "LONG_BINPUT":
                assert isinstance(value, int)
                self._memo[value] = self._top
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._top
            case "MARK":
                self._fields, self._name, self._top = [], None, None
            case "TUPLE":
                self._fields, self._name, self._top = None, self._fields, None
            case "BINPERSID":
                key, has_bytes = _storage(self._name)
                if has_bytes:
                    self.keys[key] = None
                self._fields = self._name = self._top = None
            case "PERSID":
                raise ValueError("no name of a storage")
            case "STACK_GLOBAL":
                self._top = self._name = None
                self._fields = [*self._fields[:-2], None] if self._fields is not None else None
            case "BINGET" | "LONG_BINGET":
                assert isinstance(value, int)
                self._push(self._memo.get(value))
            case _:
                self._push(value if isinstance(value, int | str) else None)

    def _push(self, value: object) -> None:
        self._top, self._name = value, None
        if self._fields is not None:
            self._fields.append(value)
            if len(self._fields) > _STORAGE_FIELDS:
                self._fields = None


def _storage(name: list[object] | None) -> tuple[str, bool]:
    """Return a storage's key, and whether it has bytes. Raises ValueError for what is no name of a storage."""
    if name is None or len(name) != _STORAGE_FIELDS or name[0] != "storage":
        raise ValueError("no name of a storage")
    _, _, key, location, elements = name
    if not isinstance(key, str) or not isinstance(elements, int):
        raise ValueError("no name of a storage")
    return key, bool(elements) and location != "meta"


class _Window(io.RawIOBase):
    """A file, for `zipfile`."""

    def __init__(self, read: Read, size_bytes: int) -> None:
        super().__init__()
        self._read, self._size_bytes, self._at = read, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError("before the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._read(self._at, max(0, min(len(buffer), self._size_bytes - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
