"""What an agent makes of its ranks' flight recorders: it asks little, takes any answer, says who waits and what stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from worker_side import load_worker_side

from robust_run.harmless import Harmless
from robust_run.launcher.agent.watching.flight_watch import FlightWatch
from robust_run.launcher.model.events import HangSuspected, NodeEvent
from robust_run.tracer.files import clocks as layout
from robust_run.tracer.files import ring
from robust_run.tracer.files.ring import RingHeader, RingReader
from robust_run.tracer.flight.types import GroupClock
from robust_run.tracer.sight import flight_recorder
from robust_run.tracer.types import Group

MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is waited for, however busy this machine is."""
    monkeypatch.setattr(flight_recorder, "PATIENT_S", 60.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


def dump(*counts: tuple[int, int], entries: bool = False) -> dict[str, Any]:
    """What a recorder says of groups 0, 1, ... that have been given and have completed so many operations."""
    said: dict[str, Any] = {
        "pg_status": {
            str(number): {
                "last_enqueued_collective": str(enqueued),
                "last_started_collective": "-1",
                "last_completed_collective": str(completed),
            }
            for number, (enqueued, completed) in enumerate(counts)
        },
        "version": "2.10",
    }
    if entries:
        said["entries"] = [
            {"pg_id": number, "process_group": [f"g{number}", ""], "collective_seq_id": 1, "op_id": 1}
            for number in range(len(counts))
        ]
    return said


class Node:
    """A rank whose worker server answers as the test says, and an agent's eyes on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()
        self.steps_file = str(folder / "0")
        ring.create(f"{self.steps_file}.ring", 0, 2)
        self.reader = RingReader(f"{self.steps_file}.ring")
        self.nccl: Callable[[], dict[str, Any]] | None = None
        self.gloo: Callable[[], dict[str, Any]] | None = None
        self.asked: list[str] = []
        self.reported: list[NodeEvent] = []
        self.complaints: list[str] = []
        self.steps, self.event_s, self.pid = 5, 100.0, 10
        self.watch = FlightWatch(
            attempt=3,
            node="here",
            steps_files={0: self.steps_file},
            after_s=5.0,
            clock=self.clock,
            report=self.reported.append,
            harmless=Harmless("looking", self.complaints.append),
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().removeprefix("/handler/")
            self.asked.append(question)
            source = self.gloo if question.startswith("fr_trace") else self.nccl
            if source is None:
                writer.write(MISSING)
                return
            body = source()
            body = {key: value for key, value in body.items() if key != "entries" or "=false" not in question}
            content = json.dumps(body).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
        finally:
            writer.close()

    def run(self, what: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with await asyncio.start_unix_server(self.serve, f"{self.steps_file}.sock"):
                self.watch.start(asyncio.get_running_loop())
                try:
                    return await what()
                finally:
                    self.watch.stop()

        return asyncio.run(run())

    async def look(self, after_s: float = 1.0) -> float | None:
        """Look, and wait until what that asked is answered."""
        self.clock.now_s += after_s
        assert self.reader.header() is not None
        header = RingHeader(
            pid=self.pid, rank=0, world_size=2, ops=0, steps=self.steps, last_at_s=self.event_s, blocked_s=0.0,
            waiting_since_s=None, waiting_index=None, events=1, given_up=False,
        )  # fmt: skip
        self.watch.look(0, header, self.reader, self.clock.now_s)
        await asyncio.gather(*self.watch._tasks)
        return self.watch.look(0, header, self.reader, self.clock.now_s)

    async def looks(self, count: int, after_s: float = 1.0) -> list[float | None]:
        return [await self.look(after_s) for _ in range(count)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_counts_alone_are_asked_of_nccl_and_names_once(node: Node) -> None:
    node.nccl = lambda: dump((4, 4), entries=True)
    node.event_s = 1e9  # it makes calls
    node.run(lambda: node.looks(20))
    assert node.asked.count("dump_nccl_trace_json") == 1
    assert 8 <= node.asked.count("dump_nccl_trace_json?includecollectives=false") <= 10
    assert "fr_trace_json" not in node.asked
    assert node.complaints == []


def test_a_rank_whose_work_stands_waits_since_then(node: Node) -> None:
    node.nccl = lambda: dump((5, 4), entries=True)
    found = node.run(lambda: node.looks(12))
    assert found[-1] == pytest.approx(101.0, abs=2.0)
    assert node.watch.sight(0) is not None


def test_one_whose_work_gets_done_waits_since_a_moment_ago(node: Node) -> None:
    done = iter(range(1000))
    node.nccl = lambda: dump((2000, next(done)), entries=True)
    found = node.run(lambda: node.looks(20))
    assert found[-1] is not None and node.clock.now_s - found[-1] <= 2.0
    sight = node.watch.sight(0)
    assert sight is not None and sight.moved_at_s is not None and node.clock.now_s - sight.moved_at_s <= 4.0


def test_on_a_torch_without_nccl_only_a_silent_rank_is_asked(node: Node) -> None:
    node.gloo = lambda: dump((5, 4), entries=True)
    node.event_s = 1e9
    node.run(lambda: node.looks(20))
    assert node.asked == ["dump_nccl_trace_json?includecollectives=false"]
    node.event_s = node.clock.now_s
    found = node.run(lambda: node.looks(10))
    assert "fr_trace_json" in node.asked
    assert found[-1] is not None


def test_what_the_worker_writes_after_its_steps_is_read_without_asking(node: Node) -> None:
    written = load_worker_side().load("clocks")
    octets = bytearray(4096)
    writer = written.Clocks(
        type("Ring", (), {"octets": octets, "recording": True}), lambda *_: json.dumps(dump((9, 8)))
    )
    writer.look()
    assert (layout.CLOCKS_AT, layout.CLOCKS_BYTES, layout.ROWS) == (
        written.CLOCKS_AT,
        written.CLOCKS_BYTES,
        written.ROWS,
    )
    found = layout.parse(bytes(octets[layout.CLOCKS_AT :][: layout.CLOCKS_BYTES]))
    assert found is not None and found[1] == (GroupClock(0, 9, -1, 8),)
    written.HEAD.pack_into(octets, written.CLOCKS_AT, 2, int(100.5e9), 1)
    with Path(f"{node.steps_file}.ring").open("r+b") as file:
        file.seek(layout.CLOCKS_AT)
        file.write(octets[layout.CLOCKS_AT :])
    node.gloo = lambda: dump((9, 8), entries=True)
    node.event_s = 1e9
    node.run(lambda: node.looks(4))
    assert node.asked.count("fr_trace_json") == 1  # for the name
    said = node.watch.said(0, [Group(name="g0", ranks=(0, 1))])
    assert said is not None
    assert [(one.name, one.enqueued, one.completed, one.size, one.last) for one in said.groups] == [("g0", 9, 8, 2, 1)]


def test_half_written_counts_are_none() -> None:
    head = layout.HEAD.pack(3, 10, 1)
    assert layout.parse(head.ljust(layout.CLOCKS_BYTES, b"\0")) is None
    assert layout.parse(layout.HEAD.pack(2, 10, 1 << 40).ljust(layout.CLOCKS_BYTES, b"\0")) is None
    assert layout.parse(b"") is None


def test_work_that_is_not_completed_though_steps_go_on_is_told_once(node: Node) -> None:
    node.nccl = lambda: dump((5, 4), (50, 50), entries=True)

    async def train() -> None:
        for _ in range(80):
            node.steps += 1
            assert await node.look() is None or node.steps < 9

    node.run(train)
    (told,) = node.reported
    assert isinstance(told, HangSuspected)
    assert told.reason.startswith("torch's flight recorder: it has made")
    assert "completed none of its work of group g0" in told.reason and "(#4; #5 is under way)" in told.reason


def test_another_process_of_the_worker_begins_anew(node: Node) -> None:
    node.nccl = lambda: dump((5, 4), entries=True)

    async def replaced() -> float | None:
        await node.looks(10)
        node.pid = 11
        return await node.look()

    since_s = node.run(replaced)
    assert since_s is None or since_s >= node.clock.now_s - 2.0


@pytest.mark.parametrize(
    "body", [b"", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{"]
)
def test_any_other_answer_is_none_and_is_asked_for_less(node: Node, body: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node.asked.append("")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(body)
        writer.close()

    node.serve = serve  # type: ignore[method-assign]
    assert set(node.run(lambda: node.looks(60))) == {None}
    assert len(node.asked) <= 8
    assert node.complaints == []


def test_without_a_server_nothing_is_known(node: Node) -> None:
    async def looks() -> list[float | None]:
        node.watch.start(asyncio.get_running_loop())
        return await node.looks(20)

    assert set(asyncio.run(looks())) == {None}
    assert node.watch.said(0, []) is None
    assert node.complaints == []
