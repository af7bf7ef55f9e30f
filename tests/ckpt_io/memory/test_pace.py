"""Which generations are copied: nodes that do not ask each other have copies of the same one, however long sending takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.memory import pace
from robust_run.ckpt_io.memory.pace import Pace


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
        if pace.begins_stretch(long, before, at):
            assert pace.begins_stretch(short, before, at)
        before = at


class Sender:
    """A node whose sending takes so many steps; its peer keeps two copies."""

    def __init__(self, takes: int) -> None:
        self.takes, self.pace = takes, Pace()
        self.copies: list[int] = []
        self.sending: tuple[int, int] | None = None

    def saved(self, step: int) -> None:
        if self.sending is not None and step >= self.sending[1]:
            done, self.sending = self.sending[0], None
            self.pace = pace.sent(self.pace, self.takes)
            self.copies = [*self.copies, done][-2:]
        if self.sending is None and pace.begins_stretch(self.pace, step - 1, step):
            self.copies = self.copies[-1:]  # the other buffer is written
            self.sending = (step, step + self.takes)

    def holds(self, step: int, now: int) -> bool:
        """Whether its part can be had while it is there: its own last two, the one it sends, or a copy."""
        return step in self.copies or step in (now, now - 1) or (self.sending is not None and self.sending[0] == step)


@given(takes=st.lists(st.integers(8, 15), min_size=2, max_size=5), lost=st.integers(0, 4), at=st.integers(200, 400))
def test_after_a_loss_there_is_a_generation_that_all_have(takes: list[int], lost: int, at: int) -> None:
    nodes = [Sender(each) for each in takes]
    for step in range(1, at):
        for each in nodes:
            each.saved(step)
    gone = nodes.pop(lost % len(nodes))
    usable = [step for step in gone.copies if all(each.holds(step, at - 1) for each in nodes)]
    assert usable and at - max(usable) <= 2 * gone.pace.stride
