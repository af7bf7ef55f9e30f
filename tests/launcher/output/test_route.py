"""The whole way of the output, with real processes, pipes and terminals."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError
from robust_run.launcher.agent.output.route import OutputRouter
from robust_run.launcher.agent.output.sinks import BoundedWriter, FileSink
from robust_run.launcher.model.job import OutputStreams, Std

NOT = Std()
OUT = Std(out=True)
BOTH = Std(out=True, err=True)

# Prints `count` lines in pieces whose ends have nothing to do with the ends of lines.
PRINT_MANY = """
import os, sys
rank, count = int(sys.argv[1]), int(sys.argv[2])
data = b"".join(b"rank %d line %06d %s\\n" % (rank, number, b"x" * (number % 60)) for number in range(count))
for start in range(0, len(data), 997):
    os.write(1, data[start : start + 997])
"""


class Screen:
    """What the launcher's stdout leads to: a pipe whose other end a person (the test) reads."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.data = b""
        self._has_more = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start_reading(self) -> None:
        self._thread.start()

    def wait_for(self, text: bytes) -> None:
        """Wait until `text` is shown."""
        with self._has_more:
            assert self._has_more.wait_for(lambda: text in self.data, 60), (text, self.data[-2000:])

    def finish(self) -> bytes:
        """Return all that was shown."""
        os.close(self.write_fd)
        self.write_fd = -1
        self._thread.join(60)
        return self.data

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.read_fd, 65536)
            except OSError:  # A pseudo-terminal that nobody has open any more.
                return
            if not data:
                return
            with self._has_more:
                self.data += data
                self._has_more.notify_all()

    def close(self) -> None:
        """Let go of both ends: of the one that is read once nobody reads it, or its number may be another file's by then."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
        if self._thread.is_alive():
            self._thread.join(60)
        if self.read_fd >= 0:
            os.close(self.read_fd)
        self.read_fd = self.write_fd = -1


class Terminal(Screen):
    """The same with a terminal of 33 rows and 77 columns."""

    def __init__(self) -> None:
        super().__init__()
        self.close()
        self.read_fd, self.write_fd = os.openpty()
        self.resize(33, 77)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.write_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Job:
    """A router, its sinks, and the workers that a test starts."""

    def __init__(self, run_dir: Path, streams: OutputStreams, screen: Screen, terminal: Std, limit_bytes: int) -> None:
        self.run_dir = run_dir
        self.screen = screen
        self.errors: list[OSError] = []
        self.console = BoundedWriter(screen.write_fd, limit_bytes=limit_bytes)
        self.files = FileSink(lambda path, error: self.errors.append(error))
        self.router = OutputRouter(
            streams,
            "default",
            console_out=self.console,
            console_err=self.console,
            files=self.files,
            clock=SystemClock(),
            console_is_terminal=terminal,
        )
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, code: str, *arguments: str, attempt: int = 0, keep_logs: bool = True) -> None:
        folder = str(self.run_dir / f"attempt_{attempt}" / str(rank)) if keep_logs else None
        child = self.router.open_rank(attempt, rank, rank, folder)
        try:
            argv = [sys.executable, "-I", "-c", code, *arguments]
            worker = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=child.stdout, stderr=child.stderr)
            self.workers.append(worker)
        finally:
            child.close()

    async def wait_for_workers(self) -> None:
        for worker in self.workers:
            await asyncio.to_thread(worker.wait, 120)

    def log(self, rank: int, name: str = "stdout", attempt: int = 0) -> bytes:
        return (self.run_dir / f"attempt_{attempt}" / str(rank) / f"{name}.log").read_bytes()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            if worker.stdin is not None:
                worker.stdin.close()
        self.console.drain(10)  # its descriptor is closed next
        self.console.close()
        assert self.files.stop(60)


def streams(count: int, redirects: Std = NOT, tee: Std = NOT, **others: object) -> OutputStreams:
    shown = others.pop("shown", (True,) * count)
    return OutputStreams(redirects=(redirects,) * count, tee=(tee,) * count, shown=shown, **others)  # type: ignore[arg-type]


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen()
    yield screen
    screen.close()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


Open = Callable[..., Job]


@pytest.fixture
def open_job(tmp_path: Path, screen: Screen, terminal: Terminal) -> Iterator[Open]:  # both outlive what writes to them
    jobs: list[Job] = []

    def open_job(
        streams: OutputStreams, screen: Screen = screen, terminal: Std = NOT, limit_bytes: int = 16 * 1024 * 1024
    ) -> Job:
        jobs.append(Job(tmp_path / "run", streams, screen, terminal, limit_bytes))
        return jobs[-1]

    yield open_job
    for job in jobs:
        job.close()


@asynccontextmanager
async def running(job: Job) -> AsyncIterator[OutputRouter]:
    """Read the output of all that was started; at the end of the block wait for its end."""
    job.router.attach(asyncio.get_running_loop())
    yield job.router
    await job.wait_for_workers()
    await job.router.finish_attempt(0, 60)


def run_to_the_end(job: Job) -> None:
    async def run() -> None:
        async with running(job):
            pass

    asyncio.run(run())


def test_eight_workers_printing_at_once_lose_and_mix_nothing(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(8))
    screen.start_reading()
    for rank in range(8):
        job.start(rank, PRINT_MANY, str(rank), "12500")  # Before there is a loop, as for the first attempt.
    run_to_the_end(job)
    assert job.console.drain(60) == 0
    shown = screen.finish().splitlines(keepends=True)
    assert len(shown) == 100_000
    for rank in range(8):
        lines = [b"rank %d line %06d %s\n" % (rank, number, b"x" * (number % 60)) for number in range(12500)]
        assert [line for line in shown if line.startswith(b"rank %d " % rank)] == lines
        assert job.log(rank) == b"".join(lines)
        assert job.log(rank, "stderr") == b""
    assert job.errors == []


def test_a_console_that_nobody_reads_stops_no_worker_and_the_logs_are_complete(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(4), limit_bytes=300_000)
    for rank in range(4):
        job.start(rank, PRINT_MANY, str(rank), "10000")
    run_to_the_end(job)  # Workers ended although not one byte was read from the console.
    screen.start_reading()
    assert job.console.drain(60) == 0
    shown = screen.finish().splitlines(keepends=True)
    missing = [int(match[1]) for line in shown if (match := re.match(rb"robust-run: (\d+) lines \(.*missing", line))]
    assert missing
    assert len(shown) - len(missing) + sum(missing) == 40_000
    assert all(re.fullmatch(rb"rank \d line \d{6} x*\n|robust-run: .*\n", line) for line in shown)
    for rank in range(4):
        assert job.log(rank).count(b"\n") == 10_000


def test_a_console_that_went_away_stops_no_worker(open_job: Open, screen: Screen) -> None:
    os.close(screen.read_fd)
    screen.read_fd = -1
    job = open_job(streams(1))
    job.start(0, PRINT_MANY, "0", "20000")
    run_to_the_end(job)
    job.console.drain(60)
    assert job.console.is_broken
    assert job.log(0).count(b"\n") == 20_000


def test_redirected_streams_are_only_in_their_files(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(1, redirects=OUT))
    screen.start_reading()
    job.start(0, "import sys; print('to out'); print('to err', file=sys.stderr)")
    run_to_the_end(job)
    assert job.console.drain(60) == 0
    assert screen.finish() == b"to err\n"
    assert (job.log(0), job.log(0, "stderr")) == (b"to out\n", b"to err\n")


def test_without_a_folder_redirected_output_goes_nowhere(open_job: Open, screen: Screen, tmp_path: Path) -> None:
    job = open_job(streams(1, redirects=BOTH, stdout_filters=("x",)))
    screen.start_reading()
    job.start(0, "import sys; print('to out'); print('to err', file=sys.stderr)", keep_logs=False)
    run_to_the_end(job)
    assert job.router.tail(0, 0) == ("to err\n", None), "the evidence is kept all the same"
    assert screen.finish() == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("template", "prefix"),
    [(None, b"[default1]:"), ("<${role_name} ${rank}/${local_rank} $other>", b"<default 1/1 $other>")],
)
def test_teed_lines_have_a_prefix_on_the_console_only(
    open_job: Open, screen: Screen, template: str | None, prefix: bytes
) -> None:
    job = open_job(streams(2, redirects=BOTH, tee=OUT, prefix_template=template))
    screen.start_reading()
    job.start(1, "import sys; print('a\\nb'); print('to err', file=sys.stderr)")
    run_to_the_end(job)
    assert job.console.drain(60) == 0
    assert screen.finish() == prefix + b"a\n" + prefix + b"b\n"
    assert (job.log(1), job.log(1, "stderr")) == (b"a\nb\n", b"to err\n")


def test_ranks_that_are_not_shown_are_in_their_files(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(2, tee=OUT, shown=(True, False)))
    screen.start_reading()
    for rank in (0, 1):
        job.start(rank, f"print('i am {rank}')")
    run_to_the_end(job)
    assert job.console.drain(60) == 0
    assert screen.finish() == b"[default0]:i am 0\n"
    assert job.log(1) == b"i am 1\n"


def test_filtered_lines_of_teed_ranks_are_copied_with_their_prefix(open_job: Open, screen: Screen) -> None:
    wanted = OutputStreams(
        redirects=(NOT,) * 3,
        tee=(BOTH, OUT, NOT),
        shown=(True,) * 3,
        stdout_filters=("loss", "acc"),
        stderr_filters=("never",),
    )
    job = open_job(wanted)
    screen.start_reading()
    for rank in range(3):
        job.start(rank, f"print('loss {rank}\\nnoise\\nacc {rank}')")
    run_to_the_end(job)
    folder = job.run_dir / "attempt_0"
    assert sorted((folder / "filtered_stdout.log").read_bytes().splitlines()) == [
        b"[default0]:acc 0",
        b"[default0]:loss 0",
        b"[default1]:acc 1",
        b"[default1]:loss 1",
    ]
    assert (folder / "filtered_stderr.log").read_bytes() == b""


def test_a_bar_is_seen_while_it_stands_still(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(2))
    screen.start_reading()

    async def run() -> None:
        async with running(job):
            job.start(0, "import sys; sys.stdout.write('\\r 50%'); sys.stdout.flush(); input(); print('\\r100%')")
            await asyncio.to_thread(screen.wait_for, b"\r 50%")
            job.router.say("robust-run: the launcher\u202e speaks")
            job.start(1, "print('another rank')")
            await asyncio.to_thread(screen.wait_for, b"another rank\n")
            job.workers[0].communicate(b"\n")

    asyncio.run(run())
    assert job.console.drain(60) == 0
    assert screen.finish() == b"\r 50%\nrobust-run: the launcher\\u202e speaks\nanother rank\n\r100%\n"
    assert job.log(0) == b"\r 50%\r100%\n"


def test_log_files_do_not_wait_for_the_end_of_a_line(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(1, redirects=OUT))

    async def run() -> None:
        async with running(job):
            job.start(
                0, "import sys; sys.stdout.write('half'); sys.stdout.flush(); print('r', file=sys.stderr); input()"
            )
            screen.start_reading()
            await asyncio.to_thread(screen.wait_for, b"r\n")
            job.router.tail(0, 0)  # Reads all that is there.
            assert await asyncio.to_thread(job.files.flush, 60)
            assert job.log(0) == b"half"
            job.workers[0].communicate(b"\n")

    asyncio.run(run())


@pytest.mark.parametrize("is_terminal", [NOT, OUT, BOTH])
def test_a_worker_has_a_terminal_where_the_launcher_has_one(
    open_job: Open, terminal: Terminal, is_terminal: Std
) -> None:
    job = open_job(streams(1), terminal, is_terminal)
    terminal.start_reading()
    job.start(0, "import os; print(os.isatty(1), os.isatty(2), os.isatty(1) and tuple(os.get_terminal_size(1)))")
    run_to_the_end(job)
    size = "(77, 33)" if is_terminal.out else "False"
    assert job.log(0) == f"{is_terminal.out} {is_terminal.err} {size}\n".encode()


def test_teed_and_redirected_streams_are_no_terminals(open_job: Open, terminal: Terminal) -> None:
    job = open_job(OutputStreams(redirects=(OUT, NOT), tee=(NOT, OUT), shown=(True, True)), terminal, BOTH)
    terminal.start_reading()
    for rank in (0, 1):
        job.start(rank, "import os; print(os.isatty(1), os.isatty(2))")
    run_to_the_end(job)
    assert [job.log(rank) for rank in (0, 1)] == [b"False True\n"] * 2


def test_a_terminal_program_passes_unchanged_and_at_once(open_job: Open, terminal: Terminal) -> None:
    job = open_job(streams(1), terminal, OUT)
    terminal.start_reading()
    code = "import os; os.write(1, b'\\x1b[A\\r 50%\\t\\xff'); input(); os.write(1, bytes(range(256)) + b'<end>')"

    async def run() -> None:
        async with running(job):
            job.start(0, code)
            await asyncio.to_thread(terminal.wait_for, b"\x1b[A\r 50%\t\xff")
            job.workers[0].communicate(b"\n")
            await asyncio.to_thread(terminal.wait_for, b"<end>")

    asyncio.run(run())
    every_byte = bytes(range(256)) + b"<end>"
    assert job.log(0) == b"\x1b[A\r 50%\t\xff" + every_byte
    # The launcher's own terminal (and no other before it) turns newlines into what a screen needs.
    assert terminal.data == b"\x1b[A\r 50%\t\xff" + every_byte.replace(b"\n", b"\r\n")


def test_a_worker_learns_when_the_window_changes(open_job: Open, terminal: Terminal) -> None:
    job = open_job(streams(1), terminal, OUT)
    terminal.start_reading()

    async def run() -> None:
        async with running(job) as router:
            job.start(0, "import os; print('up'); input(); print(os.get_terminal_size(1).columns)")
            await asyncio.to_thread(terminal.wait_for, b"up\r\n")
            terminal.resize(40, 123)
            router.resize()
            job.workers[0].communicate(b"\n")

    asyncio.run(run())
    assert job.log(0) == b"up\n123\n"


def test_last_words_are_known_as_soon_as_the_worker_is_gone(open_job: Open) -> None:
    job = open_job(streams(2))
    before_s = SystemClock().monotonic_s()
    job.start(0, "raise ValueError('no such luck')")
    job.start(1, "print('fine')")

    async def run() -> None:
        job.router.attach(asyncio.get_running_loop())
        for worker in job.workers:
            worker.wait(60)  # The loop has not read a byte yet.
        text, spoke_at_s = job.router.tail(0, 0)
        assert text.startswith("Traceback (most recent call last):\n")
        assert text.endswith("ValueError: no such luck\n")
        assert spoke_at_s is not None
        assert before_s <= spoke_at_s <= SystemClock().monotonic_s()
        assert job.router.tail(0, 1) == ("", None)
        await job.router.finish_attempt(0, 60)
        assert job.router.tail(0, 0) == (text, spoke_at_s), "still known when the attempt is over"
        assert (job.router.last_output_at_s(1) or 0) >= before_s
        assert job.router.last_output_at_s(7) is None

    asyncio.run(run())


def test_a_grandchild_that_keeps_a_stream_open_is_not_waited_for(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(1))
    screen.start_reading()
    code = (
        "import subprocess; child = subprocess.Popen(['sleep', '1000'], stdin=subprocess.DEVNULL); "
        "print(child.pid, flush=True); print('unfinished', end='', flush=True)"
    )
    before = set(os.listdir("/proc/self/fd"))
    job.start(0, code)

    async def run() -> None:
        job.router.attach(asyncio.get_running_loop())
        await job.wait_for_workers()
        await job.router.finish_attempt(0, 0.05)

    try:
        asyncio.run(run())
        assert job.console.drain(60) == 0
        assert job.files.flush(60)
        pid = int(job.log(0).splitlines()[0])
        assert screen.finish() == b"%d\nunfinished" % pid
        worker_stdin = job.workers[0].stdin
        assert worker_stdin is not None
        worker_stdin.close()
        assert set(os.listdir("/proc/self/fd")) <= before, "no stream and no log file is left open"
    finally:
        os.kill(int(job.log(0).splitlines()[0]), signal.SIGKILL)


def test_attempts_do_not_share_logs_and_old_evidence_is_let_go(open_job: Open, screen: Screen) -> None:
    job = open_job(streams(1))
    screen.start_reading()

    async def run() -> None:
        job.router.attach(asyncio.get_running_loop())
        for attempt in range(3):
            job.start(0, f"import sys; print('attempt {attempt}', file=sys.stderr)", attempt=attempt)
            await job.wait_for_workers()
            await job.router.finish_attempt(attempt, 60)

    asyncio.run(run())
    assert [job.log(0, "stderr", attempt) for attempt in range(3)] == [b"attempt 0\n", b"attempt 1\n", b"attempt 2\n"]
    assert job.router.tail(2, 0) == ("attempt 2\n", None)
    assert job.router.tail(1, 0) == ("attempt 1\n", None)
    assert job.router.tail(0, 0) == ("", None)


def test_a_worker_that_could_not_be_started_leaves_nothing_to_wait_for(open_job: Open) -> None:
    job = open_job(streams(1))

    async def run() -> None:
        job.router.attach(asyncio.get_running_loop())
        job.router.open_rank(0, 0, 0, None).close()
        await job.router.finish_attempt(0, 60)
        await job.router.finish_attempt(99, 60)

    asyncio.run(run())
    assert job.router.tail(0, 0) == ("", None)


def test_too_few_descriptors_are_said_with_what_to_do(open_job: Open) -> None:
    import resource

    job = open_job(streams(1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(os.listdir("/proc/self/fd"))
    highest = max(map(int, before))
    fillers = [os.dup(0) for _ in range(highest)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 3, limits[1]))  # One pipe and no second.
    try:
        with pytest.raises(PlatformError, match=r"output of rank 5: Too many open files; raise `ulimit -n`"):
            job.router.open_rank(0, 5, 0, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in fillers:
            os.close(fd)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_making_the_outputs_of_the_first_workers_imports_no_event_loop() -> None:
    code = (
        "import sys\n"
        "from robust_run.clock import SystemClock\n"
        "from robust_run.launcher.agent.output.route import OutputRouter\n"
        "from robust_run.launcher.agent.output.sinks import FileSink, open_console\n"
        "from robust_run.launcher.model.job import Std, OutputStreams\n"
        "out, err = open_console(1, 2)\n"
        "router = OutputRouter(OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)), 'default', console_out=out,\n"
        "    console_err=err, files=FileSink(print), clock=SystemClock(), console_is_terminal=Std())\n"
        "router.open_rank(0, 0, 0, '/nowhere/0').close()\n"
        "print([name for name in ('asyncio', 'json', 'logging', 'dataclasses', 'termios') if name in sys.modules])\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
