"""What the slots of the ring point to: process groups and call sites, as lines that are only ever added to the ring's table.

`sitecustomize` loads this file by its path. Python's standard library only.
"""

from __future__ import annotations

import os
from itertools import count, islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType

TABLE_BYTES, TABLE_AT = 1 << 18, 4096 + 4096 * 64 + 1024 * 16
TABLE_BYTES_CELL, TABLE_GENERATION_CELL = 11, 14
ROOMY_BYTES = TABLE_BYTES * 3 // 4  # what may be left of a table that is made anew
FRAMES_WALKED = 12
CODES_KEPT = 8192
TURNS_KEPT = 4096
DIGITS = 10  # of a limit that is written over
USER, PACKAGE, MACHINERY = range(3)
WORLD = "(world)"


class GroupEntry:
    """A process group, as far as its calls need it."""

    __slots__ = ("has_backends", "has_tags", "held_at", "index", "limit_ms", "next_number", "ranks", "turns")

    def __init__(self, index: int, ranks: Sequence[int]) -> None:
        self.index = index
        self.ranks = ranks
        self.has_tags = False  # calls of tensors on the CPU meet by their tags
        self.has_backends = False  # they are written down
        self.limit_ms = 0  # of its calls, as written down; 0: not known
        self.held_at = 0  # where in the ring the limit of the call stands that it is in; 0: nowhere yet
        self.next_number = count(1).__next__  # of its collectives
        self.turns: dict[tuple[int, int, int], int] = {}  # point-to-point calls so far, by direction, peer and tag

    def global_rank(self, rank: int) -> int:
        """Return the global rank of a rank of this group; -1 if that is not known."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else -1

    def next_turn(self, op: int, peer: int, tag: int = 0) -> int:
        """Count a point-to-point call. Of a program with a new tag for each step the oldest are forgotten."""
        key = op, peer, tag
        turn = self.turns.pop(key, 0) + 1
        if len(self.turns) >= TURNS_KEPT:
            for oldest in list(islice(self.turns, TURNS_KEPT // 2)):
                self.turns.pop(oldest, None)
        self.turns[key] = turn
        return turn


class Table:
    """Numbers groups and call sites, and writes down what the numbers mean. 0 is unknown."""

    def __init__(
        self,
        octets: memoryview[int],
        cells: memoryview[int],
        may_write: Callable[[], bool],
        in_slots: Callable[[], set[int]] = set,
    ) -> None:
        """`may_write` says whether this process owns the ring, `in_slots` which numbers its slots have."""
        self.octets = octets
        self.cells = cells
        self.may_write, self.in_slots = may_write, in_slots
        self.living: Callable[[], set[int]] = set  # numbers of groups that may make calls; `hooks` knows them
        self.is_full = False
        self.kinds: dict[
            int, tuple[int, CodeType]
        ] = {}  # by id of the code, which is kept so that the id stays its own
        self.sites: dict[tuple[int, int], int] = {}
        self.entries = count(1).__next__
        self.groups: dict[tuple[str, str], GroupEntry] = {}  # by name, and ranks as they are written down
        self.forget: Callable[[], object] = lambda: None  # runs when codes are no longer held on to
        self.library = os.path.dirname(os.__file__) + os.sep

    def site(self, frame: FrameType | None) -> int:
        """Return the index of the call site: the innermost frame of the user's program, else of a package above torch."""
        kinds, package = self.kinds, None
        for _ in range(FRAMES_WALKED):
            if frame is None:
                break
            code = frame.f_code
            known = kinds.get(id(code))
            kind = known[0] if known else self.kind(code)
            if kind == USER:
                return self.sites.get((id(code), frame.f_lasti)) or self.new_site(frame)
            if kind == PACKAGE and package is None:
                package = frame
            frame = frame.f_back
        return 0 if package is None else self.sites.get((id(package.f_code), package.f_lasti)) or self.new_site(package)

    def kind(self, code: CodeType) -> int:
        """Return whose code this is."""
        if len(self.kinds) >= CODES_KEPT:  # a program that makes code as it goes on
            self.forget()
            self.kinds.clear()
            self.sites.clear()
        name = code.co_filename
        packages = "site-packages" in name or "dist-packages" in name
        ours = name.startswith(("<frozen", os.path.dirname(__file__) + os.sep))
        if ours or f"{os.sep}torch{os.sep}" in name or (name.startswith(self.library) and not packages):
            kind = MACHINERY
        else:
            kind = PACKAGE if packages else USER
        self.kinds[id(code)] = kind, code
        return kind

    def new_site(self, frame: FrameType) -> int:
        """Enter a call site into the table."""
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        index = self.entry("s", f"{code.co_filename}:{frame.f_lineno} {name}")
        self.sites[id(code), frame.f_lasti] = index
        return index

    def group(self, name: str, desc: str, ranks: Sequence[int]) -> GroupEntry:
        """Return the group of this name and these ranks, entered into the table."""
        key = name, runs(ranks)
        known = self.groups.get(key)
        if known is None:
            known = self.groups[key] = GroupEntry(self.entry("g", name, desc, key[1], limit=0xFFFF), ())
        known.ranks = known.ranks or tuple(ranks)
        return known

    def limit(self, group: GroupEntry, limit_ms: int) -> None:
        """Enter how long torch lets a call of a group take, unless that is known; the last such line of a group counts."""
        if limit_ms <= 0 or limit_ms == group.limit_ms or not group.index or not self.may_write():
            return
        group.limit_ms = limit_ms
        self.add("t", group.index, str(limit_ms))

    def hold(self, group: GroupEntry, limit_ms: int) -> bool:
        """Note the limit of the call that a group is in, 0: none of its own, where the one before stood: calls fill no table."""
        if not group.index or not self.may_write():
            return False
        digits = f"{limit_ms:0{DIGITS}d}"
        if group.held_at:
            self.octets[group.held_at : group.held_at + DIGITS] = digits.encode()
        elif self.add("l", group.index, digits):
            at = TABLE_AT + self.cells[TABLE_BYTES_CELL] - 1 - DIGITS
            if (
                bytes(self.octets[at : at + DIGITS]) == digits.encode()
            ):  # else another thread has added a line meanwhile
                group.held_at = at
        return group.held_at > 0

    def backends(self, group: GroupEntry, backends: str) -> None:
        """Enter what moves the tensors of a group, once."""
        if backends and not group.has_backends and group.index and self.may_write():
            group.has_backends = self.add("b", group.index, backends)

    def entry(self, kind: str, *fields: str, limit: int = 1 << 31) -> int:
        """Add a line with a new index to the table, and return the index; 0, unknown, if there is no room for it."""
        if not self.may_write():
            return 0
        index = self.entries()
        return index if index <= limit and self.add(kind, index, *fields) else 0

    def add(self, kind: str, index: int, *fields: str) -> bool:
        """Add a line to the table; False if there is no room for it."""
        line = "\t".join([kind, str(index), *(" ".join(field.split()) for field in fields)]) + "\n"
        content = line.encode("utf-8", errors="replace")
        if self.cells[TABLE_BYTES_CELL] + len(content) > TABLE_BYTES and not self.is_full:
            self.make_room(index)
        used = self.cells[TABLE_BYTES_CELL]
        if used + len(content) > TABLE_BYTES:
            return False
        self.octets[TABLE_AT + used : TABLE_AT + used + len(content)] = content
        self.cells[TABLE_BYTES_CELL] = used + len(content)
        return True

    def make_room(self, new: int) -> None:
        """Leave out what no slot and no living group needs: groups that are gone, and code. A program makes some with each step.

        What is left keeps its number, `new` is about to be used, and all others are given anew. While the generation is odd the
        table makes no sense.
        """
        self.is_full = True  # for other threads, meanwhile
        kept = self.in_slots() | self.living() | {new}
        kept |= {group.index for (name, _), group in self.groups.items() if name == WORLD}
        used = self.cells[TABLE_BYTES_CELL]
        lines = bytes(self.octets[TABLE_AT : TABLE_AT + used]).splitlines(keepends=True)
        content = b"".join(line for line in lines if line[:1] != b"l" and number_of(line) in kept)
        self.forget()
        self.kinds.clear()
        self.sites.clear()
        self.groups = {key: group for key, group in self.groups.items() if group.index in kept}
        for group in self.groups.values():
            group.held_at = 0
        self.entries = filter(lambda number: number not in kept, count(1)).__next__
        self.cells[TABLE_GENERATION_CELL] += 1
        self.octets[TABLE_AT : TABLE_AT + len(content)] = content
        self.cells[TABLE_BYTES_CELL] = len(content)
        self.cells[TABLE_GENERATION_CELL] += 1
        self.is_full = len(content) > ROOMY_BYTES


def number_of(line: bytes) -> int:
    """Return the number that a line is about; -1 if it is none of ours."""
    fields = line.split(b"\t", 2)
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else -1


def runs(ranks: Sequence[int]) -> str:
    """Return ranks as `0-3,8,16-64/16`: 10,000 of them in a few bytes where they are evenly spaced, as groups are."""
    parts, start = [], 0
    while start < len(ranks):
        end = start + 1
        step = ranks[end] - ranks[start] if end < len(ranks) else 0
        while step > 0 and end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
            end += 1
        if step <= 0 or end - start < 2:
            parts.append(str(ranks[start]))
            start += 1
        else:
            parts.append(f"{ranks[start]}-{ranks[end]}" + (f"/{step}" if step > 1 else ""))
            start = end + 1
    return ",".join(parts)
