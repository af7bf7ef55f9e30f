"""What py-spy prints is read as the same threads and frames that faulthandler would give."""

import json

from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.stacks.dumps import TEXT_CHARACTERS, parse_spied
from robust_run.tracer.types import Frame

# Printed by py-spy 0.4.2 for CPython 3.11.
SPIED = """[
  {"pid": 29341, "thread_id": 139689147356864, "thread_name": "feeder", "os_thread_id": 29343, "active": false,
   "owns_gil": false, "process_info": null, "frames": [
     {"name": "w", "filename": "/app/train.py", "module": null, "short_filename": "train.py", "line": 2, "locals": null,
      "is_entry": true, "is_shim_entry": false},
     {"name": "Thread.run", "filename": "/usr/lib/python3.11/threading.py", "module": null,
      "short_filename": "threading.py", "line": 982, "locals": null, "is_entry": false, "is_shim_entry": false}]},
  {"pid": 29341, "thread_id": 139689158327168, "thread_name": "MainThread", "os_thread_id": 29341, "active": false,
   "owns_gil": false, "process_info": null, "frames": [
     {"name": "<module>", "filename": "/app/train.py", "module": null, "short_filename": "train.py", "line": 4,
      "locals": null, "is_entry": true, "is_shim_entry": true}]}
]"""


def test_threads_have_names_and_plain_function_names():
    feeder, main = parse_spied(SPIED)
    assert feeder.name == "feeder"
    assert [frame.function for frame in feeder.frames] == ["w", "run"]
    assert main.frames == (Frame("<module>", "/app/train.py", 4),)
    assert (feeder.tid, main.tid) == (29343, 29341)


def test_the_main_thread_is_known():
    assert [stack.is_main for stack in parse_spied(SPIED)] == [False, True]


def test_a_renamed_main_thread_is_known_by_its_number():
    assert parse_spied(SPIED.replace("MainThread", "trainer"))[1].is_main


def test_functions_within_functions_lose_what_is_around_them():
    (stack,) = parse_spied('[{"frames": [{"name": "main.<locals>.step", "filename": "a.py", "line": 3}]}]')
    assert stack.frames == (Frame("step", "a.py", 3),)


@given(st.text() | st.binary())
def test_garbage_gives_nothing(text: str | bytes):
    assert parse_spied(text) in ((), parse_spied(text))


def test_other_json_and_what_is_too_long_gives_nothing():
    assert parse_spied('{"error": "no such process"}') == ()
    assert parse_spied("[" * 100_000) == ()
    assert parse_spied(" " * TEXT_CHARACTERS + "[]") == ()


def test_a_name_alone_that_two_threads_have_tells_no_main_thread() -> None:
    """A thread may be called MainThread, too: whoever counts side threads must not leave it out."""
    threads = json.loads(SPIED)
    for thread in threads:
        thread["thread_name"] = "MainThread"
    assert [stack.is_main for stack in parse_spied(json.dumps(threads))] == [False, True], "the kernel's number decides"
    for thread in threads:
        thread["os_thread_id"] = None
    assert not any(stack.is_main for stack in parse_spied(json.dumps(threads)))


def test_without_the_kernels_numbers_the_main_thread_is_known_by_its_name_or_by_being_the_only_one() -> None:
    """Of Python 3.10 py-spy tells no numbers, and names only where the program has imported threading."""
    threads = json.loads(SPIED)
    for thread in threads:
        thread["os_thread_id"] = None
    assert [(stack.is_main, stack.tid) for stack in parse_spied(json.dumps(threads))] == [(False, 0), (True, 29341)]
    threads[1]["thread_name"] = None
    assert [(stack.is_main, stack.tid) for stack in parse_spied(json.dumps(threads[1:]))] == [(True, 29341)]


def test_of_too_many_threads_the_main_one_is_kept() -> None:
    feeder, main = json.loads(SPIED)
    found = parse_spied(json.dumps([feeder] * 200 + [main]))
    assert len(found) == 128 and sum(stack.is_main for stack in found) == 1
