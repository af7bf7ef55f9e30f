"""A controller without agents: the real core and a real journal, told by the test what happens, served by the real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from robust_forks import RobustForks, robust_forks

from robust_run.clock import SystemClock
from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.controller.steps import StepBook
from robust_run.launcher.core.state import JobState, policy_of
from robust_run.launcher.core.step import step
from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.events import AttemptEnded, AttemptStarted, Event, StoreOpened, Tick
from robust_run.launcher.model.job import JobSpec, ManyNodes, NodeInfo, OutputStreams, Progress, Std
from robust_run.launcher.model.node_events import JobStarted, NodeJoined, NodeLost
from robust_run.launcher.operator.reading import client
from robust_run.launcher.operator.reading.client import ApiTarget
from robust_run.launcher.operator.server.server import ApiServer, HttpPlace
from robust_run.launcher.records.journal import Journal
from robust_run.report.types import Action, Incident, Verdict
from robust_run.tracer.nccl.rates import CommRate
from robust_run.tracer.types import Scene

TOKEN = "0123456789abcdef" * 4

#: What a test waits for at most.
STUCK_S = 60.0


def spec_of(nodes: int | None = 4, fewest: int | None = None) -> JobSpec:
    many = None
    if nodes is not None:
        many = ManyNodes(fewest=fewest or nodes, most=nodes, host="gpu-1", port=29500)
    return JobSpec(
        argv=("python", "train.py"),
        script="train.py",
        is_python=True,
        nproc=8,
        run_id="run",
        rdzv_id="run",
        log_dir="/tmp",
        streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
        many=many,
    )


def fail(path: str, error: OSError) -> None:
    raise AssertionError((path, error))


class Controller:
    """A `ControllerHandle` over the real core. Time goes on by a second with each event."""

    def __init__(self, run_directory: Path, spec: JobSpec | None = None) -> None:
        self.spec = spec or spec_of()
        self.now_s = 100.0
        self.pace_s = 1.0
        """How much time goes on with each event."""
        self.journal_path = str(run_directory / "journal.jsonl")
        self.told: list[Event] = []
        self.facts = JobFacts(
            run_id=self.spec.run_id,
            script=self.spec.script,
            host=socket.gethostname(),
            pid=os.getpid(),
            version="0.1.0",
            started_unix_s=SystemClock().unix_s() - 3600,
            run_directory=str(run_directory),
            policy=policy_of(self.spec),
        )
        self.fault: Exception | None = None
        self._state = JobState()
        self._incidents: list[Incident] = []
        self.scene: Scene | None = None
        """What is seen of the ranks; None: nothing runs."""
        self.samples: list[int] = []
        self.rates: list[CommRate] = []
        self.noticed: dict[str, int] = {}
        self.book = StepBook()
        self.kept = 0
        self._journal = Journal(self.journal_path, SystemClock(), fail)
        self._journal.open_with(self.spec, self.facts.host)

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()

    def state(self) -> JobState:
        if self.fault is not None:
            raise self.fault
        return self._state

    def silent_s(self, node_id: str) -> float | None:
        return 0.4

    def incidents(self) -> list[Incident]:
        return self._incidents

    def nccl_rates(self) -> list[CommRate]:
        return self.rates

    def notices(self) -> dict[str, int]:
        return self.noticed

    def steps(self) -> StepBook:
        return self.book

    def observe(self, then: Callable[[Scene], None], samples: int) -> bool:
        self.samples.append(samples)
        if self.scene is not None:
            then(self.scene)
        return self.scene is not None

    def keep_traces(self) -> bool:
        self.kept += self.scene is not None
        return self.scene is not None

    def tell(self, event: Event) -> None:
        self.told.append(event)
        self.now_s += self.pace_s
        _, actions = step(self.facts.policy, self._state, event, self.now_s)
        self._journal.event(event, self.now_s, actions)
        for action in actions:
            if isinstance(action, RecordIncident):
                self._note(action)

    def records(self, action: RecordIncident) -> None:
        """Something went wrong."""
        self._journal.event(Tick(), self.now_s, [action])
        self._note(action)

    def _note(self, action: RecordIncident) -> None:
        self._incidents.append(incident_of(action, len(self._incidents) + 1))

    # --- what agents would report ---

    def start(self, nodes: int = 4) -> Controller:
        """Bring the job to its first attempt on so many nodes, gpu-1 to gpu-N."""
        self.tell(JobStarted())
        for number in range(1, nodes + 1):
            self.join(number)
        return self.open()

    def join(self, number: int) -> None:
        info = NodeInfo(id=f"id{number}", name=f"gpu-{number}", nproc=8, address=f"10.0.0.{number}", pid=40 + number)
        self.tell(NodeJoined(node=info))

    def open(self) -> Controller:
        state = self._state
        first = state.layout[0].node
        self.tell(StoreOpened(attempt=state.attempt, node=first, address="10.0.0.1", port=5000))
        for placement in state.layout:
            self.tell(AttemptStarted(attempt=state.attempt, node=placement.node, pids=(1,) * 8, port=5000))
        return self

    def end_attempt(self) -> None:
        """All nodes that were told to end the attempt have done so."""
        attempt = self._state.attempt
        for node in sorted(self._state.unended):
            self.tell(
                AttemptEnded(attempt=attempt, node=node, started_at_s=101.0, ranks=(), progress=Progress(lived_s=1.0))
            )

    def lose(self, number: int) -> None:
        """A node goes, and the job is healed as far as it can be."""
        self.tell(NodeLost(node=f"id{number}", silent_s=3.5))
        self.end_attempt()
        if self._state.phase == "opening":
            self.open()


def incident_of(action: RecordIncident, number: int) -> Incident:
    draft = action.verdict
    now_s = SystemClock().unix_s()
    return Incident(
        id=number,
        attempt=action.attempt,
        symptom=action.symptom,
        onset_s=now_s,
        detected_s=now_s - 720,
        decided_s=now_s,
        verdict=Verdict(
            kind=draft.kind,
            ranks=draft.ranks,
            nodes=draft.nodes,
            confidence=draft.confidence,
            rule=draft.rule,
            sentence=draft.sentence,
        ),
        action=Action(name=action.action, reason=action.reason),
    )


class Served:
    """A server in a thread of its own, and its controller."""

    def __init__(self, controller: Controller, run_directory: Path, http_place: HttpPlace | None) -> None:
        self.controller = controller
        self.run_directory = run_directory
        self.complaints: list[str] = []
        self.faults: list[dict[str, Any]] = []
        """What asyncio would have ended the job for."""
        self._http = http_place
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="served")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self._stop = asyncio.Event()
        server = ApiServer(
            self.controller,
            str(self.run_directory),
            TOKEN,
            SystemClock(),
            self.complaints.append,
            self._http,
        )
        server.start()
        self.place = server.place
        self._ready.set()
        await self._stop.wait()
        await server.close()

    def begin(self) -> Served:
        """Start the server; return when it listens."""
        import robust_run.launcher.operator.server.routes  # noqa: F401 - else the first one who asks, with its own patience, waits for that

        self._thread.start()
        assert self._ready.wait(STUCK_S)
        return self

    def end(self) -> None:
        """Close the server; may be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STUCK_S)
        assert not self._thread.is_alive()
        assert self.faults == []

    def on_loop(self, call: Callable[[], object]) -> None:
        """Do something where the controller does things."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (call(), done.set()))
        assert done.wait(STUCK_S)

    @property
    def port(self) -> int:
        assert self.place is not None
        return int(self.place.http.rpartition(":")[2])

    def unix(self) -> ApiTarget:
        return ApiTarget(socket=str(self.run_directory / "api.sock"))

    def tcp(self, token: str = TOKEN) -> ApiTarget:
        return ApiTarget(url=f"http://127.0.0.1:{self.port}", token=token)

    def http(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Ask over TCP; return the status and the JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STUCK_S)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    path = tmp_path / "robust-runs" / "run"
    path.mkdir(parents=True, mode=0o700)
    return path


@pytest.fixture
def serve(run_directory: Path) -> Iterator[Callable[..., Served]]:
    """Serve a controller until the test ends; by default one whose job runs on four nodes."""
    running: list[Served] = []

    def start(
        controller: Controller | None = None, http_place: HttpPlace | None = None, folder: Path = run_directory
    ) -> Served:
        served = Served(controller or Controller(folder).start(), folder, http_place)
        running.append(served.begin())
        return served

    yield start
    for served in running:
        served.end()
        served.controller.close()


@pytest.fixture(scope="session")
def forks() -> Iterator[RobustForks]:
    with tempfile.TemporaryDirectory(prefix="rf-", dir="/tmp") as folder, robust_forks(Path(folder)) as made:
        yield made


@pytest.fixture
def robust(tmp_path: Path, forks: RobustForks) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `robust` as a user would, where the folder robust-runs is."""

    def call(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        whole = {**os.environ, "TZ": "UTC", **(env or {})}
        if forks.fits(whole):
            return forks.run(arguments, tmp_path, whole)
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", "from robust_run.robust_cli import main; main()", *arguments],
            cwd=tmp_path,
            env=whole,
            capture_output=True,
            text=True,
            timeout=STUCK_S,
        )

    return call


@pytest.fixture
def make_controller(run_directory: Path) -> Iterator[Callable[..., Controller]]:
    """Return a controller whose journal is in the run directory."""
    made: list[Controller] = []

    def make(nodes: int | None = 4, fewest: int | None = None, folder: Path = run_directory) -> Controller:
        made.append(Controller(folder, spec_of(nodes, fewest)))
        return made[-1]

    yield make
    for controller in made:
        controller.close()


@pytest.fixture(autouse=True)
def patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks in this process waits as long as a busy machine takes."""
    monkeypatch.setattr(client, "TIMEOUT_S", STUCK_S)


@pytest.fixture
def authorised() -> dict[str, str]:
    return AUTHORISED


@pytest.fixture
def token() -> str:
    return TOKEN
