"""Keys as terminals send them, and what they do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.operator.top.keys import Key, Looking, press, read_keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["quit"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA\x1b[5~\x1b[6~", ["up", "page_up", "page_down"]),
        (b"jjk", ["down", "down", "up"]),
        (b"\x1b", ["back"]),
        (b"\x1b[1;5Cj", ["down"]),
        (b"\x1b[200~xyz", []),
        ("é".encode(), []),
    ],
)
def test_what_was_pressed(data: bytes, keys: list[Key]) -> None:
    assert read_keys(data) == keys


@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    looking = press(Looking(), read_keys(data), 10, 100)
    assert 0 <= looking.first <= 90


def test_scrolling_stays_within_the_list() -> None:
    looking = press(Looking(), ["page_down"] * 3, 10, 25)
    assert looking.first == 15
    assert press(looking, ["down"], 10, 25).first == 15
    assert press(looking, ["home", "up"], 10, 25).first == 0
    assert press(Looking(), ["end"], 10, 1250).first == 1240
    assert press(Looking(), ["end", "down"], 10, 3).first == 0


def test_panes_open_and_close() -> None:
    incidents = press(Looking(first=7), ["incidents"], 10, 100)
    assert (incidents.pane, incidents.first) == ("incidents", 0)
    assert press(incidents, ["incidents"], 10, 100).pane == "nodes"
    assert press(incidents, ["back"], 10, 100).pane == "nodes"
    assert press(incidents, ["help", "help"], 10, 100).pane == "nodes"
    assert press(Looking(), ["back"], 10, 100).is_over
    assert press(incidents, ["quit"], 10, 100).is_over
