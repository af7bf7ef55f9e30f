"""Which generations are copied: nodes that do not ask each other have copies of the same one, however long sending takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.memory import pace
from robust_run.ckpt_io.memory.pace import CALM, LOWER_S, MOST_KEEP, Keeping, Pace, Said, Strides


def test_the_stride_is_as_large_as_sending_takes() -> None:
    found = Pace()
    assert found.stride == 1
    strides = []
    for lag in (0, 1, 2, 3, 4, 17, 0, 0, 0, 0):
        found = pace.sent(found, lag)
        strides.append(found.stride)
    assert strides == [1, 2, 4, 4, 8, 32, 32, 32, 32, 1]
    assert Pace(receiver=8).stride == Pace(sender=8).stride == 8


@given(steps=st.lists(st.integers(1, 9), min_size=1, max_size=60), lag=st.integers(0, 30), more=st.integers(0, 30))
def test_what_begins_a_long_stretch_begins_a_shorter_one(steps: list[int], lag: int, more: int) -> None:
    """So nodes that differ still choose some of the same."""
    short, long = pace.sent(Pace(), lag), pace.sent(Pace(), lag + more)
    at, before = 0, None
    for each in steps:
        at += each
        if pace.begins_stretch(long.stride, before, at):
            assert pace.begins_stretch(short.stride, before, at)
        before = at


@dataclass
class Node:
    """A node of a job, step by step: three or four buffers, and a peer that keeps two copies. Times are in steps."""

    sends_in: int = 0
    """How long a generation is on its way."""
    verifies_in: int = 0
    """How long one is hashed."""
    pace: Pace = field(default_factory=Pace)
    keeping: Keeping = field(default_factory=Keeping)
    buffers: list[tuple[int, int]] = field(default_factory=list)
    """Step, and since when it is whole."""
    copies: list[int] = field(default_factory=list)
    sending: tuple[int, int] | None = None
    keeps_originals: bool = True
    """Of what has been and is sent, in a fourth buffer where a copy takes longer than a step."""
    originals: tuple[int, ...] = ()

    def own(self, now: int) -> list[int]:
        """What it holds whole itself, the oldest first."""
        return [step for step, whole_at in self.buffers if whole_at <= now]

    def in_place(self, now: int) -> set[int]:
        """Of which generations it has parts: what is being hashed is waited for, the newest may not have been copied yet."""
        return {step for step, _ in self.buffers if step < now}

    def there(self, now: int) -> set[int]:
        """Of which generations its parts can be had while it and its peer are there."""
        return {*self.in_place(now), *self.copies}

    @property
    def has_fourth(self) -> bool:
        return self.keeps_originals and self.pace.stride > 1

    def saves(self, step: int) -> None:
        if self.sending is not None and step >= self.sending[1]:
            done, self.sending = self.sending[0], None
            self.pace = pace.sent(self.pace, step - done)
            self.copies = [*self.copies, done][-2:]
        if pace.begins_stretch(self.keeping.stride, step - 1 if step > 1 else None, step):
            self.keeps(step)
        newest = self.own(step)[-1:]
        if newest and self.sending is None and newest[0] not in self.copies[-1:]:
            before = newest[0] - 1 if newest[0] > 1 else None
            if pace.begins_stretch(self.pace.stride, before, newest[0]):
                self.copies = self.copies[-1:]  # the other buffer is written
                self.originals = (*self.copies, newest[0])
                self.sending = (newest[0], step + self.sends_in)

    def keeps(self, step: int) -> None:
        """A buffer is free if it is not written, not sent, not being hashed and not the newest."""
        newest = self.own(step)[-1:]
        busy = {*newest, *(() if self.sending is None else (self.sending[0],))}
        busy.update(self.originals if self.has_fourth else ())
        most = 4 if self.has_fourth else 3
        free = [each for each in self.buffers if each[1] <= step and each[0] not in busy]
        if len(self.buffers) >= most and not free:
            self.keeping = pace.skipped(self.keeping)
            return
        while len(self.buffers) >= most and free:
            self.buffers.remove(free.pop(0))
        self.buffers.append((step, step + self.verifies_in))
        self.keeping = pace.kept(self.keeping)


#: A node says for so long that it needs a longer stride than it does now (`pace.LOWER_S`).
LOWER_STEPS = 60


class Ring:
    """All nodes of a job: each sends to the one after it. `told_after`: what one needs is told to all so many steps later."""

    def __init__(self, *nodes: Node, told_after: int | None) -> None:
        self.nodes, self.told_after = nodes, told_after
        self.needed: list[tuple[int, int]] = []
        self.step = 0

    def makes(self, steps: int) -> Iterator[int]:
        for _ in range(steps):
            self.step += 1
            for at, node in enumerate(self.nodes):
                node.saves(self.step)
                after, before = self.nodes[(at + 1) % len(self.nodes)], self.nodes[at - 1]
                node.pace = msgspec.structs.replace(node.pace, receiver=after.pace.own, sender=before.pace.own)
            needs = max(each.keeping.own for each in self.nodes), max(each.pace.own for each in self.nodes)
            self.needed.append(needs)
            if self.told_after is not None and self.step > self.told_after:
                known = self.needed[-LOWER_STEPS - self.told_after : len(self.needed) - self.told_after]
                keeps, copies = max(each for each, _ in known), max(each for _, each in known)
                for node in self.nodes:
                    node.keeping = msgspec.structs.replace(node.keeping, job=keeps)
                    node.pace = msgspec.structs.replace(node.pace, job=max(keeps, copies))
            yield self.step

    def after_the_loss_of(self, lost: int) -> int:
        """The newest step that is whole without a node, its part from its copy; -1: there is none."""
        others = [  # the copies of the one before it are lost with it
            node.in_place(self.step) if at == (lost - 1) % len(self.nodes) else node.there(self.step)
            for at, node in enumerate(self.nodes)
            if at != lost
        ]
        return max(set(self.nodes[lost].copies).intersection(*others), default=-1)

    def in_place(self) -> int:
        """The newest step that is whole if ranks die, and no node."""
        return max(set.intersection(*(node.there(self.step) for node in self.nodes)), default=-1)

    @property
    def stride(self) -> int:
        return max(max(node.pace.stride, node.keeping.stride) for node in self.nodes)


def test_neighbours_alone_do_not_keep_a_slow_node_s_generations_alive() -> None:
    """Why all nodes go by one stride: here those that the slow one does not send to, nor get copies from, have gone on."""
    ring = Ring(*(Node() for _ in range(4)), Node(sends_in=12), told_after=None)
    without = [step for step in ring.makes(400) if step > 100 and ring.after_the_loss_of(4) < 0]
    assert len(without) > 150


def test_originals_that_are_written_over_leave_nothing_in_common_with_the_copies_of_a_lost_node() -> None:
    ring = Ring(*(Node(sends_in=6, keeps_originals=False) for _ in range(3)), told_after=0)
    without = [step for step in ring.makes(400) if step > 100 and ring.after_the_loss_of(0) < 0]
    assert len(without) > 200


def test_a_node_that_keeps_what_it_can_has_nothing_in_common_with_those_that_keep_all() -> None:
    ring = Ring(*(Node() for _ in range(4)), Node(verifies_in=6), told_after=None)
    without = [step for step in ring.makes(400) if step > 100 and ring.in_place() < 0]
    assert len(without) > 100


@given(
    sends=st.lists(st.integers(0, 20), min_size=2, max_size=6),
    verifies=st.lists(st.sampled_from([0, 0, 0, 1, 2, 5]), min_size=6, max_size=6),
    told_after=st.integers(0, 5),
)
def test_unlike_nodes_that_go_by_one_stride_always_have_a_generation_in_common(
    sends: list[int], verifies: list[int], told_after: int
) -> None:
    ring = Ring(*(Node(each, slow) for each, slow in zip(sends, verifies, strict=False)), told_after=told_after)
    largest = 1
    for step in ring.makes(500):
        largest = max(largest, ring.stride)
        if step > 200:  # it is known by then what each needs
            assert ring.in_place() >= step - 4 * largest, (step, ring.nodes)
            for lost in range(len(sends)):
                assert ring.after_the_loss_of(lost) >= step - 4 * largest, (step, lost, ring.nodes)


# --- how strides grow and fall


def test_a_skip_doubles_what_is_left_out_up_to_a_limit_and_calm_brings_it_back() -> None:
    found = pace.skipped(Keeping())
    assert found.stride == 2
    for _ in range(10):
        found = pace.skipped(found)
    assert found.stride == MOST_KEEP
    for _ in range(CALM * MOST_KEEP):
        found = pace.kept(found)
    assert found.stride == 1
    assert pace.skipped(Keeping(job=4)).own == 8, "the one that it skipped at was not enough"


def test_more_is_said_at_once_and_less_when_it_has_been_less_for_a_while() -> None:
    said, is_news = pace.to_say(Said(), Strides(1, 1), 0.0)
    assert not is_news
    said, is_news = pace.to_say(said, Strides(1, 8), 10.0)
    assert (is_news, said.strides) == (True, Strides(1, 8))
    said, is_news = pace.to_say(said, Strides(2, 1), 11.0)
    assert (is_news, said.strides) == (True, Strides(2, 8))
    said, is_news = pace.to_say(said, Strides(2, 4), 11.0 + LOWER_S - 1)
    assert not is_news
    said, is_news = pace.to_say(said, Strides(2, 4), 11.0 + LOWER_S)
    assert (is_news, said.strides) == (True, Strides(2, 4))
    said, is_news = pace.to_say(said, Strides(2, 4), 500.0)
    assert not is_news
    said, is_news = pace.to_say(said, Strides(1, 4), 500.0 + LOWER_S / 2)
    assert not is_news, "it was as much a moment ago"
