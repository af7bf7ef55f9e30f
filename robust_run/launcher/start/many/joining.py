"""How a node comes into a job of several: it finds the controller, or becomes its host, and is let in."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError, UserError
from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.errors import JoinRefusal, NotController, WrongToken
from robust_run.launcher.control.greeting import digest
from robust_run.launcher.control.meeting import Guest, Host, SystemNetwork, meet, own_address
from robust_run.launcher.control.messages import Hello, Welcome
from robust_run.launcher.control.sockets import spoken
from robust_run.launcher.controller.leadership.leaders import not_here, refuse_if_led
from robust_run.launcher.model.job import JobSpec, ManyNodes, NodeInfo
from robust_run.launcher.model.world import as_text
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.many.controller_supervisor import ControllerSupervisor, bind, config_of
from robust_run.launcher.start.many.dialing import Dialing, guest_at, own_name
from robust_run.launcher.start.many.fence import Lease
from robust_run.launcher.start.many.finding import RETRY_S
from robust_run.launcher.start.many.founding import Founding
from robust_run.launcher.start.many.lookout import LOOK_S, Lookout
from robust_run.version import __version__

#: Tries of each of several ports before what is met there is believed.
TRIES_PER_PORT = 20


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is continued on this node."""

    run_path: str
    agent: str = ""
    """Id of the job's agent that lives here already: only the controller is missing."""


class Joining:
    """The way of one node to the controller, and back to it."""

    def __init__(  # noqa: PLR0913 - all that it needs
        self,
        *,
        spec: JobSpec,
        many: ManyNodes,
        token: str,
        guard: int,
        resumed: Resumed | None,
        clock: Clock,
        lease: Lease,
        supervisor: ControllerSupervisor,
        node_id: str,
        marks: str,
        say: Callable[[str], None],
    ) -> None:
        """`marks`: folder of what this node remembers of runs; empty: nothing is kept."""
        self.candidate: socket.socket | None = None
        """Where this node would serve as controller; the supervisor's as soon as it is in line."""
        self.block_ports: tuple[int, ...] = ()
        """Where this node gives blocks of the job's image; 0: nowhere."""
        self.fetch_port = 0
        """Where this node gives units of a checkpoint that it fetches ahead; 0: nowhere."""
        self.setup = b""
        """The snapshot that this node has restored; empty: none."""
        self._spec = spec
        self._many = many
        self._token = token
        self._guard = guard
        self._resumed = resumed
        self._clock = clock
        self._supervisor = supervisor
        self._node_id = node_id
        self._say = say
        self._network = SystemNetwork()
        self._name = own_name(spec)
        self._place: Host | Guest = Guest(addresses=(), port=many.port)
        self._candidate_port = 0
        self._tries = 0
        self._by_record = ""
        """HOST:PORT that the record of the job's runs led this node to; empty: it did not."""
        self._own_place: Host | None = None
        """Where the controller listens that this node has started."""
        self._goes_on = ""
        """Run that was there before, and whose controller this node has started."""
        self._lookout = None if resumed is not None else Lookout(spec, many, marks, socket.gethostname(), clock, say)
        self._dialing = Dialing(many, token, clock, lease)

    @property
    def is_host(self) -> bool:
        """Whether this node has started the controller."""
        return isinstance(self._place, Host)

    async def join(self) -> Connection:
        """Find the controller, or become its host, and be let in. Raises RobustRunError."""
        many = self._many
        give_up_at_s = self._clock.monotonic_s() + many.join_timeout_s
        said = False
        if self._resumed is not None and many.controller_standby > 0:
            await refuse_if_led(self._spec, many, self._resumed.run_path, self._clock)
        while True:
            waits_for = await self._find_place()
            trouble = ""
            try:
                connection = await self.dial("", self.hello())
            except (JoinRefusal, NotController) as refusal:
                if not self._is_doubtful(refusal) and not self._may_be_elsewhere(refusal):
                    raise
                trouble = str(refusal)
            except (OSError, TimeoutError) as error:
                self._is_doubtful(error)
                trouble = str(error)
            else:
                if self._lookout is not None:
                    await self._lookout.close()
                return connection
            now_s = self._clock.monotonic_s()
            if now_s >= give_up_at_s:
                raise PlatformError(
                    f"no controller at {many.host}:{many.port} within {many.join_timeout_s:g} s (join_timeout): "
                    f"{waits_for or trouble}{self._where_to_look()}"
                )
            is_late = now_s > give_up_at_s - many.join_timeout_s + 2.0
            if not said and not waits_for and not isinstance(self._place, Host) and is_late:
                said = True
                self._say(f"waiting for the controller at {many.host}:{many.port}: {trouble}{self._where_to_look()}")
            await asyncio.sleep(LOOK_S if waits_for else RETRY_S)

    async def _find_place(self) -> str:
        """Find out where the controller is, or start it here; return why this node has to wait, empty if it need not."""
        if self._supervisor.is_running:
            await self._follow_another()
            return ""
        founding = Founding(act="found") if self._lookout is None else await self._lookout.look()
        if founding.act == "refuse":
            raise UserError(founding.say)
        self._by_record = founding.where if founding.act == "join" else ""
        if founding.act == "join":
            self._place = guest_at(founding.where)
            return ""
        place = await asyncio.to_thread(meet, self._many, self._network)
        if founding.act == "wait":
            return self._wait(founding, place)
        self._place = self._next_port(place)
        if isinstance(self._place, Host):
            self._host(self._place, founding)
        elif self._resumed is not None:
            raise UserError(not_here(self._many))
        return ""

    def _wait(self, founding: Founding, place: Host | Guest) -> str:
        """Found nothing, dial the controllers that this node remembers and, where that is not here, the place where all meet."""
        assert self._lookout is not None
        places = [guest_at(where) for where in self._lookout.remembered] if founding.say else []
        if isinstance(place, Host):
            place.socket.close()  # who dials is refused, and looks elsewhere
            self._lookout.explain()
            places = places or [Guest(addresses=(), port=self._many.port)]
        else:
            places.append(place)
        self._place = places[self._tries % len(places)]
        self._tries += 1
        return founding.say or "this node is checking whether this job runs already" if isinstance(place, Host) else ""

    async def _follow_another(self) -> None:
        """Join whoever leads, where this node was about to go on with a run and another was elected first; else its own."""
        if not self._goes_on or self._lookout is None or self._own_place is None:
            return
        founding = await self._lookout.look()
        is_led = founding.act == "join" and founding.where != self._supervisor.address
        self._by_record = founding.where if is_led else ""
        self._place = guest_at(founding.where) if is_led else self._own_place

    def _is_doubtful(self, error: Exception) -> bool:
        """Whether a leader on record may be another program's address by now, or starved: it is looked at again later."""
        if not self._by_record or self._lookout is None or isinstance(error, ConnectionError):
            return False
        if isinstance(error, JoinRefusal) and not isinstance(error, WrongToken):
            return False  # a controller has spoken
        return self._lookout.doubt(self._by_record)

    def forget_earlier(self) -> None:
        """Remove what this node remembers of runs before the one that it has a part in now."""
        if self._lookout is not None:
            self._lookout.forget()

    def _where_to_look(self) -> str:
        """Return whose output says why there is no controller, where that is known: under Slurm, the first node starts it."""
        return f"; see the output of the task on {self._many.host}" if self._many.is_host is False else ""

    def _may_be_elsewhere(self, refusal: JoinRefusal | NotController) -> bool:
        """Whether trying again may help: where the job has several ports, some may be another job's or program's."""
        if isinstance(refusal, JoinRefusal) and not refusal.final:
            return True
        is_stranger = isinstance(refusal, (NotController, WrongToken))
        is_young = self._tries < TRIES_PER_PORT * (len(self._many.more_ports) + 1)
        return is_stranger and is_young and bool(self._many.more_ports) and not self.is_host

    def _next_port(self, place: Host | Guest) -> Host | Guest:
        """Let a guest try the other ports now and then, between tries of the first, which is nearly always right."""
        self._tries += 1
        if isinstance(place, Host) or not self._many.more_ports or self._tries % 2:
            return place
        more = self._many.more_ports
        return msgspec.structs.replace(place, port=more[self._tries // 2 % len(more)])

    def _host(self, place: Host, founding: Founding) -> None:
        """Start the controller on this node, of a new run or of one that was there before. Raises RobustRunError."""
        spec, resume = self._spec, self._resumed is not None
        if self._lookout is not None:
            self._lookout.explain()
        if self._resumed is not None:
            run_directory = RunDirectory.resume(self._resumed.run_path)
        elif founding.act == "go_on":
            self._goes_on, resume = founding.run_id, True
            run_directory = RunDirectory.join(spec.log_dir, founding.run_id, self._guard).for_controller()
            named = spec.rdzv_id != spec.run_id
            spec = msgspec.structs.replace(
                spec, run_id=founding.run_id, rdzv_id=spec.rdzv_id if named else founding.run_id
            )
        else:
            run_directory = RunDirectory.create(spec.log_dir, spec.run_id, self._guard).for_controller()
        config = config_of(spec, self._token, run_directory, self._node_id, self._guard, resume=resume)
        closes = os.path.join(os.path.dirname(run_directory.path), founding.closes) if founding.closes else ""
        config = msgspec.structs.replace(
            config,
            address=spoken(place.addresses[0], place.port),
            setup=self.setup,
            needs=founding.needs,
            hold_s=founding.hold_s,
            after=founding.after,
            closes=closes,
        )
        self._own_place = place
        self._supervisor.start(config, place.socket)

    def hello(self) -> Hello:
        """Return what this node says of itself, as far as it is known."""
        many = self._many
        address = own_address(many, self._place, self._network, next(iter(self._place.addresses), ""))
        node = NodeInfo(
            id=self._node_id,
            name=self._name,
            nproc=self._spec.nproc,
            address=address,
            node_rank=many.node_rank,
            candidate=self._candidate_address(address),
            blocks=",".join(
                spoken(address, port) if port else "" for port in self.block_ports if any(self.block_ports)
            ),
            fetches=spoken(address, self.fetch_port) if self.fetch_port else "",
            ckpt_dir=as_text(self._spec.ckpt_dir or ""),
            has_memory=self._spec.ckpt_memory is True,
            pid=os.getpid(),
            version=__version__,
        )
        return Hello(
            nonce=b"",
            proof=b"",
            node=node,
            job=many.job,
            nnodes=f"{many.fewest}:{many.most}",
            now_s=self._clock.monotonic_s(),
        )

    def check_setup(self, welcome: Welcome) -> None:
        """Raise PlatformError if the job has another environment than this node restored before there was a controller."""
        if self._spec.setup is not None and welcome.setup_digest not in ("", digest(self.setup)):
            raise PlatformError(
                "this node's snapshot of the set-up is not the job's: that was built anew meanwhile, or is in another"
                " store; give all nodes the same --setup-store, and start this node again"
            )

    def _candidate_address(self, address: str) -> str:
        """Return where this node would serve as controller, if it may become it."""
        if self._many.controller_standby == 0 or isinstance(self._place, Host) or self._supervisor.is_running:
            return ""
        if self.candidate is None:
            try:
                self.candidate = bind(address, 0)
            except OSError:
                return ""
            self._candidate_port = int(self.candidate.getsockname()[1])
        return spoken(address, self._candidate_port)

    async def dial(self, where: str, hello: Hello) -> Connection:
        """See `link.Dialer`."""
        place = guest_at(where) if where else self._place
        return await self._dialing.dial(place, hello)

    async def ask_setup(self, guest: Guest) -> bytes | None:
        """Ask a controller which snapshot the job has, without joining; None: there is no controller yet. Raises Refusal."""
        return await self._dialing.ask_setup(guest, self.hello())
