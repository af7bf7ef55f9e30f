"""Who writes a file through a mount, and whether all of them have ended it in good order. Decisions only: nothing is touched
here.

A file has an *author* in each process that opened it or wrote to it. It is whole when every author has closed it: with `close`,
or by ending with exit code 0, which is how many programs close their standard output. One that was killed by a signal has not
finished it, also if the others do: then it is given up. So has not who opened it and ended with another exit code, or executed
another program meanwhile; if a child of its did that, it is up to the opener, who is told. Processes that only hold a copy of a
descriptor (children that were forked during a save) are no authors.

What looks alike and is not told apart: a program that closes a file in the middle because an exception unwinds it, has closed
it. One that ends with exit code 0 while a thread of it still writes is told from one that is done by what was written, if that
is of a format with an end. So is a healthy one from a dead one where processes cannot be seen.
"""

from __future__ import annotations

from typing import Literal

from robust_run.ckpt_io.foreign.ends import End
from robust_run.ckpt_io.mount.callers import Caller

Verdict = Literal["wait", "commit", "give up", "refuse", "keep aside"]
"""wait: another author is not done, or nothing is to be done. give up: what was written since the last commit is no file.
refuse: the caller is told that it is not known to be whole. keep aside: the last descriptor is gone, and that is not known."""


class Authors:
    """The authors of one open file. For one caller at a time."""

    def __init__(self, opener: int | None) -> None:
        """None: a process that cannot be seen."""
        self._opener = opener
        self._writing = {opener}
        self._closed_a_copy = set[int | None]()
        """Of those that are writing: closed one descriptor, had others, and have not written since."""
        self.fate = ""
        """Why it was given up; empty if it was not."""

    @property
    def are_done(self) -> bool:
        """Whether all of them have closed it in good order."""
        return not self._writing and not self.fate

    def has(self, process: int | None) -> bool:
        """Whether a process is one of them and has not closed it."""
        return process in self._writing

    def wrote(self, process: int | None) -> None:
        """A process wrote to it."""
        self._writing.add(process)
        self._closed_a_copy.discard(process)

    def closed(self, caller: Caller, *, has_another: bool, has_bytes: bool, end: End) -> Verdict:
        """A process closed a descriptor, or ended. `has_another`: it has one more. `has_bytes`: some are not committed yet."""
        if caller.process not in self._writing:
            return "wait"
        if self.fate:
            return "give up"
        if caller.ending == "killed" or (caller.ending in ("failed", "replaced") and self._answers_for_it(caller)):
            self.fate = caller.words
            return "give up"
        if caller.ending == "exited" and has_bytes and end == "cut off":
            self.fate = f"{caller.words} in the middle of it"
            return "give up"
        if caller.ending == "unknown" and end != "whole":
            return "refuse" if has_bytes else "wait"
        if has_another:
            self._closed_a_copy.add(caller.process)
            return "wait"
        self._writing.discard(caller.process)
        return "wait" if self._writing else "commit"

    def _answers_for_it(self, caller: Caller) -> bool:
        """Whether no other process hears how it ended, and may do something about the file."""
        return caller.process == self._opener or self._opener not in self._writing

    def released(self, *, has_bytes: bool, end: End, is_new: bool) -> Verdict:
        """The last descriptor, of all processes, is gone. `is_new`: its name stands for nothing yet."""
        left = self._writing - self._closed_a_copy
        if self.fate:
            return "wait"
        if end == "whole" or not left:
            return "commit"
        if has_bytes:
            return "keep aside"
        return "commit" if is_new and left == {None} else "wait"
