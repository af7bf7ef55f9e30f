"""What one voter keeps on disk: its log, and the term and vote that it must not forget. `RUN/voters/NAME.log` and `NAME.json`.

An entry is msgpack behind four bytes of length and four of CRC32. Writes are not forced to the disk: what the kernel has
outlives this process, not the machine. A voter whose machine was booted since may lack what it had confirmed, so it is none any
more; the same holds for one whose files are gone. A log that cannot be written (no room) goes on in memory, and that is said.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import msgspec

from robust_run.errors import PlatformError
from robust_run.orchestrator.model.succession_words import BATCH_BYTES, Entry, Run

_MAGIC = b"robust-run voter 1\n"
_HEADER_BYTES = 8
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a log beside its entries (entry 0): up to `through` some are void, and gone."""

    runs: tuple[Run, ...] = ()
    through: int = 0


_heads = msgspec.msgpack.Decoder(Head)


def begin_again(folder: str, name: str, *, keep: bool = True) -> None:
    """Another start of the job begins, all processes of the one before have ended (Slurm sees to that): votes and voters of then
    mean nothing. `keep`: this node goes on with the newest log that is here: a shared folder has all of them. Raises OSError.
    """
    logs = [entry for entry in (sorted(os.listdir(folder)) if os.path.isdir(folder) else ()) if entry.endswith(".log")]
    ages: list[tuple[int, int, str]] = []
    for entry in logs if keep else ():
        log = Log(os.path.join(folder, entry), lambda _: None)
        runs = log.runs()
        ages.append((runs[-1][1] if runs else 0, log.last, entry))
        log.close()
    if ages and max(ages)[2] != f"{name}.log":
        os.replace(os.path.join(folder, max(ages)[2]), os.path.join(folder, f"{name}.log"))
    for entry in os.listdir(folder) if keep and os.path.isdir(folder) else (f"{name}.json", f"{name}.log"):
        if not (keep and entry == f"{name}.log"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, entry))


class Log:
    """One voter's entries, on disk. One process has it at a time."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        """Raises PlatformError: another process has it, it is of another version; OSError."""
        self._path, self._say = path, say
        self._file = self._open()
        self._at: list[tuple[int, int, int, int]] = []
        """Index, term, where its bytes are, and how many. Sorted by index; where they are -1, it is in `_unwritten`."""
        self._bytes = len(_MAGIC)
        self._unwritten: dict[int, bytes] = {}
        self._anew: Log | None = None
        self._head, self._head_at = Head(), -1
        self.voters: list[Entry] = []
        """Entries that say who counts, as they were when the file was opened."""
        self._read()

    @property
    def last(self) -> int:
        """Index of its last entry; 0: there is none."""
        return self._at[-1][0] if self._at else 0

    @property
    def size_bytes(self) -> int:
        """How large the file is."""
        return self._bytes

    @property
    def dropped(self) -> int:
        """Entries up to here may be void, and gone."""
        return self._head.through

    def runs(self) -> list[Run]:
        """Return from which index on entries are of which term."""
        found = [run for run in self._head.runs if run[0] <= self._head.through]
        for index, term, _, _ in self._at[self._place(self._head.through) :]:
            if not found or found[-1][1] != term:
                found.append((index, term))
        return found

    def put(self, entries: Iterable[Entry]) -> None:
        """Put entries at the end."""
        data = b""
        begin = self._bytes + sum(map(len, self._unwritten.values()))
        for entry in entries:
            framed = _framed(entry)
            self._at.append((entry.index, entry.term, begin + len(data), len(framed)))
            data += framed
        if self._unwritten or not self._write(data):
            self._keep(data)

    def shrink(self, void: Callable[[Entry], bool], through: int) -> None:
        """Leave out entries that are void, all of them up to `through`. Raises OSError: it is as it was."""
        runs = self.runs()
        self.begin_anew((), begins=True)
        for entry in self.all():
            if entry.index > through or not void(entry):
                self.begin_anew((entry,), begins=False)
        self.take_anew(runs, through)

    def cut(self, after: int) -> None:
        """Remove all entries after one. Raises OSError."""
        keep = next((n for n, each in enumerate(self._at) if each[0] > after), len(self._at))
        if keep == len(self._at):
            return
        self._bytes = min(self._bytes, self._at[keep][2])
        del self._at[keep:]
        self._unwritten = {at: data for at, data in self._unwritten.items() if at < self._at_end()}
        with suppress(OSError):
            os.ftruncate(self._file, self._bytes)
        if self._head_at >= self._bytes:
            self._set_head(self._head)

    def after(self, index: int, most_bytes: int = BATCH_BYTES, through: int | None = None) -> tuple[Entry, ...]:
        """Return entries that follow one, at least one if there is any, up to `through`."""
        found: list[Entry] = []
        size = 0
        for at in range(self._place(index), len(self._at)):
            number, _, offset, length = self._at[at]
            size += length
            if (found and size > most_bytes) or (through is not None and number > through):
                break
            found.append(self._entry(offset, length))
        return tuple(found)

    def all(self) -> Iterator[Entry]:
        """Yield all entries that are here."""
        for _, _, offset, length in list(self._at):
            yield self._entry(offset, length)

    def begin_anew(self, entries: Iterable[Entry], *, begins: bool) -> None:
        """Put entries into another log, which is to take the place of this one. Raises OSError."""
        if begins or self._anew is None:
            path = f"{self._path}.anew"
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._anew = Log(path, self._say)
        self._anew.put(entries)

    def take_anew(self, runs: Iterable[Run], through: int) -> None:
        """Go on with that one, whose terms are `runs`, and which is without some entries up to `through`. Raises OSError: this
        one is as it was.
        """
        assert self._anew is not None
        new, self._anew = self._anew, None
        new._set_head(Head(tuple(runs), through))
        if new._unwritten:
            new.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.replace(new._path, self._path)
        os.close(self._file)
        self._file, self._at, self._bytes, self._unwritten = new._file, new._at, new._bytes, {}
        self._head, self._head_at = new._head, new._head_at

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _open(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise PlatformError(
                    f"{self._path}: another process of this node has it; wait until it has ended"
                ) from error
            raise
        return file

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            data = file.read()
        if not data.startswith(_MAGIC[: len(data)]):
            raise PlatformError(f"{self._path} is of another version of robust-run; use that one")
        if len(data) < len(_MAGIC):
            os.pwrite(self._file, _MAGIC, 0)
            return
        while True:
            size, check = (int.from_bytes(data[self._bytes + i : self._bytes + i + 4], "big") for i in (0, 4))
            payload = data[self._bytes + _HEADER_BYTES : self._bytes + _HEADER_BYTES + size]
            if len(payload) < size or not size or zlib.crc32(payload) != check:
                break
            try:
                entry = _decoder.decode(payload)
            except msgspec.MsgspecError:
                break
            if entry.what == "voters":
                self.voters.append(entry)
            if entry.index:
                self._at.append((entry.index, entry.term, self._bytes, _HEADER_BYTES + size))
            else:
                self._head, self._head_at = _heads.decode(entry.data), self._bytes
            self._bytes += _HEADER_BYTES + size
        os.ftruncate(self._file, self._bytes)

    def _set_head(self, head: Head) -> None:
        data = _framed(Entry(0, 0, "head", "", _encoder.encode(head)))
        self._head, self._head_at = head, self._bytes
        if not self._write(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _at_end(self) -> int:
        """Return where the last entry ends."""
        return self._at[-1][2] + self._at[-1][3] if self._at else len(_MAGIC)

    def _place(self, index: int) -> int:
        """Return where in `_at` the first entry after an index is."""
        low, high = 0, len(self._at)
        while low < high:
            middle = (low + high) // 2
            if self._at[middle][0] > index:
                high = middle
            else:
                low = middle + 1
        return low

    def _entry(self, offset: int, length: int) -> Entry:
        data = self._unwritten.get(offset)
        if data is None:
            data = os.pread(self._file, length, offset)
        return _decoder.decode(data[_HEADER_BYTES:])

    def _write(self, data: bytes) -> bool:
        """Write behind what is there; False: there is no room, and nothing has changed."""
        try:
            if os.pwrite(self._file, data, self._bytes) == len(data):
                self._bytes += len(data)
                return True
        except OSError:
            pass
        with suppress(OSError):
            os.ftruncate(self._file, self._bytes)
        return False

    def _keep(self, data: bytes) -> None:
        """It cannot be written: it is kept here, and written with what comes later."""
        if not self._unwritten:
            self._say(
                f"{self._path} cannot be written: until it can be, a restart of this node's process would lose it; make room"
            )
        at = self._bytes + sum(len(each) for each in self._unwritten.values())
        for index, term, _, length in [each for each in self._at if each[2] >= at]:
            del index, term
            self._unwritten[at], data = data[:length], data[length:]
            at += length
        whole = b"".join(self._unwritten[each] for each in sorted(self._unwritten))
        if self._write(whole):
            self._unwritten = {}
            self._say(f"{self._path} can be written again, and has all")


def _framed(entry: Entry) -> bytes:
    payload = _encoder.encode(entry)
    return len(payload).to_bytes(4, "big") + zlib.crc32(payload).to_bytes(4, "big") + payload
