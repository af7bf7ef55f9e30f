"""Decoders that several threads ask for at once: msgspec itself ends the process where two first decode one Struct."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from robust_run.decoders import json_decoder, msgpack_decoder

AT_ONCE = """
import sys, threading, typing
import msgspec
from robust_run.decoders import json_decoder

sys.setswitchinterval(1e-6)
for round in range(40):
    fields = [(f"f{number}", int | str | None, None) for number in range(20)]
    inner = [msgspec.defstruct(f"Inner{round}_{number}", fields, tag=f"i{number}") for number in range(40)]
    of_all = typing.Union[tuple(inner)]
    outer = [msgspec.defstruct(f"Outer{round}_{number}", [("those", tuple[of_all, ...], ())]) for number in range(4)]
    data = msgspec.json.encode(outer[0](those=tuple(each() for each in inner)))
    begin = threading.Barrier(4)
    found = []

    def decode(kind):
        begin.wait()
        found.append(len(json_decoder(kind).decode(data).those))

    threads = [threading.Thread(target=decode, args=(kind,)) for kind in outer]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [40] * 4
print("whole")
"""


class Point(msgspec.Struct):
    """What is decoded."""

    x: int


class Line(msgspec.Struct, tag=True):
    """One of two."""

    length: float


class Circle(msgspec.Struct, tag=True):
    """The other."""

    radius: float


def test_threads_that_first_decode_structs_which_share_a_field_all_get_them() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_there_is_one_decoder_of_a_type() -> None:
    assert json_decoder(Point) is json_decoder(Point)
    assert json_decoder(Line | Circle).decode(b'{"type": "Circle", "radius": 1}') == Circle(radius=1.0)
    assert msgpack_decoder(list[Point]).decode(msgspec.msgpack.encode([Point(1)])) == [Point(1)]


def test_strict_and_lax_are_two() -> None:
    assert json_decoder(Point, strict=False).decode(b'{"x": "3"}') == Point(3)
    with pytest.raises(msgspec.ValidationError):
        json_decoder(Point).decode(b'{"x": "3"}')
