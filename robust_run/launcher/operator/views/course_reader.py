"""Incremental reader of a journal into a `Course`: a piece at a time, so that the caller can do other things between pieces."""

from __future__ import annotations

from robust_run.launcher.operator.views.course import Course

#: Bytes that are read at a time. A longer line is left out.
PIECE_BYTES = 4 << 20


class CourseReader:
    """The course of a job as far as its journal was read. A journal that shrank is another file: reading starts anew."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read_bytes = 0
        self.course = Course()

    def read_more(self) -> bool:
        """Read a piece; return whether that was all there is. Raises OSError."""
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            if size < self._read_bytes:
                self._read_bytes, self.course = 0, Course()
            file.seek(self._read_bytes)
            piece = file.read(PIECE_BYTES)
        end = piece.rfind(b"\n") + 1
        if not end:
            self._read_bytes += len(piece) if len(piece) == PIECE_BYTES else 0
            return len(piece) < PIECE_BYTES
        for line in piece[:end].split(b"\n"):
            self.course.take(line)
        self._read_bytes += end
        return len(piece) < PIECE_BYTES

    def read_all(self) -> Course:
        """Read to the end. Raises OSError."""
        while not self.read_more():
            pass
        return self.course
