"""Dumps of Python's faulthandler are read in all the forms that CPython 3.10 to 3.14 writes, and in any broken one."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.stacks.dumps import FRAMES, THREADS, ends_whole, parse_dump
from robust_run.tracer.types import Frame

# Written by CPython 3.11.
TWO_THREADS = """\
Thread 0x00007f8e6aa0c6c0 (most recent call first):
  File "/app/train.py", line 4 in w
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f8e6b473b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get
  File "/app/train.py", line 7 in get
  File "/app/train.py", line 17 in <module>
"""


def test_threads_come_with_their_frames_innermost_first_and_the_last_is_the_main_one():
    feeder, main = parse_dump(TWO_THREADS)
    assert not feeder.is_main
    assert feeder.frames[0] == Frame("w", "/app/train.py", 4)
    assert main.is_main
    assert [frame.function for frame in main.frames] == ["wait", "get", "get", "<module>"]


def test_threads_have_names_from_python_3_14_on():
    text = 'Thread 0x00007f01 [pin memory] (most recent call first):\n  File "a.py", line 1 in f\n\n'
    text += 'Current thread 0x00007f02 [python] (most recent call first):\n  File "b.py", line 2 in <module>\n'
    assert [(stack.name, stack.is_main) for stack in parse_dump(text)] == [("pin memory", False), ("python", True)]


def test_without_threads_there_is_one_stack():
    (main,) = parse_dump('Stack (most recent call first):\n  File "a.py", line 1 in <module>\n')
    assert main.is_main
    assert main.frames == (Frame("<module>", "a.py", 1),)


def test_a_thread_without_frames_is_there_without_frames():
    (main,) = parse_dump("Thread 0x01 (most recent call first):\n  <no Python frame>\n")
    assert main.frames == ()


def test_garbage_collection_is_no_frame():
    text = 'Current thread 0x01 (most recent call first):\n  Garbage-collecting\n  File "a.py", line 14 in __del__\n'
    assert [frame.function for frame in parse_dump(text)[0].frames] == ["__del__"]


def test_unknown_names_are_kept_as_unknown():
    (main,) = parse_dump("Current thread 0x01 (most recent call first):\n  File ???, line ??? in ???\n")
    assert main.frames == (Frame("???", "???", 0),)


def test_a_path_may_hold_quotes():
    (main,) = parse_dump('Stack (most recent call first):\n  File "/a "b", line 3 in x/c.py", line 7 in f\n')
    assert main.frames == (Frame("f", '/a "b", line 3 in x/c.py', 7),)


def test_the_main_thread_is_unknown_if_threads_were_left_out_after_the_hundredth():
    text = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n...\n'
    assert [stack.is_main for stack in parse_dump(text)] == [False]


def test_a_deep_stack_that_was_cut_is_still_the_main_one():
    text = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n  ...\n'
    assert [stack.is_main for stack in parse_dump(text)] == [True]


def test_of_two_dumps_in_a_row_the_newer_counts():
    newer = 'Current thread 0x09 (most recent call first):\n  File "late.py", line 1 in <module>\n'
    assert [stack.frames[0].file for stack in parse_dump(TWO_THREADS + newer)] == ["late.py"]


def test_a_dump_that_is_still_being_written_gives_what_is_there():
    until = TWO_THREADS.index("queue.py") + 3
    main = parse_dump(TWO_THREADS[:until])[-1]
    assert [frame.function for frame in main.frames] == ["wait"]


def test_it_can_be_told_that_a_dump_has_ended():
    assert ends_whole(TWO_THREADS)
    assert not ends_whole(TWO_THREADS[:-1])
    assert not ends_whole(TWO_THREADS[: TWO_THREADS.index("Current")])


def test_there_are_bounds_on_threads_and_frames():
    frames = '  File "a.py", line 1 in f\n' * (FRAMES * 2)
    text = f"Thread 0x01 (most recent call first):\n{frames}\n" * (THREADS + 10)
    found = parse_dump(text)
    assert len(found) == THREADS
    assert {len(stack.frames) for stack in found} == {FRAMES}
    assert not any(stack.is_main for stack in found)


@given(st.text(), st.integers(0, len(TWO_THREADS)), st.integers(0, len(TWO_THREADS)))
def test_garbage_never_raises(garbage: str, start: int, end: int):
    for text in (garbage, TWO_THREADS[:end] + garbage, garbage + TWO_THREADS[start:end]):
        assert all(len(stack.frames) <= FRAMES for stack in parse_dump(text))
        assert ends_whole(text) in (True, False)


def test_a_dump_of_this_very_python_is_read(tmp_path):
    """In a process of its own: the threads of a hundred tests would push the main one out of a dump."""
    program = tmp_path / "two_threads.py"
    program.write_text("""
import faulthandler, threading
ready, release = threading.Event(), threading.Event()
def other():
    ready.set()
    release.wait(60)
def here():
    threading.Thread(target=other).start()
    ready.wait(60)
    with open("dump", "w") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
    release.set()
here()
""")
    subprocess.run([sys.executable, program], check=True, cwd=tmp_path, timeout=60)
    found = parse_dump((tmp_path / "dump").read_text())
    assert found[-1].is_main
    assert "here" in [frame.function for frame in found[-1].frames]
    assert any("other" in [frame.function for frame in stack.frames] for stack in found[:-1])
