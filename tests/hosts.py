"""Several hosts on one machine, for tests and benches of many nodes: real kernels' views, real cables, no pytest.

A cluster is a switch and its hosts. The switch is a process with a network and a pid namespace of its own, which holds
a bridge; each host is a process 1 (host_init.py) below it, with its own network, host name, processes, /proc, /sys,
/dev/shm, /run, TMPDIR and /etc/hosts. All other files are shared. Nothing appears in the machine's own network, and nothing
has a global name but a cgroup: when the switch dies, the kernel kills all below it and takes all namespaces away. It
dies when the harness closes its socket, so also when the harness itself is killed.

    with Cluster(4, tmp_path) as cluster:
        process = cluster[0].start([sys.executable, "train.py"])
        cluster[1].power_off()
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count as counter
from pathlib import Path
from types import TracebackType
from typing import Any

import host_ground as ground
import host_warmth
from host_process import HostProcess, Init
from jobs import Job, wait_for

MOST_HOSTS = 240
NOBODY = "02:77:00:00:ff:ff"
"""A network card that does not exist: what is sent to it vanishes."""
PYTHON = (sys.executable, "-I", "-S", str(Path(__file__).with_name("host_init.py")))
CALL_S = 60.0
CONTAINER = """
echo "$1" > /proc/sys/kernel/hostname
shift
exec unshare --pid --fork --mount-proc setpriv --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""
"""$1: a pod's name; the rest becomes process 1 of its container. For one that is forked: container.py."""
_numbers = counter()


class Host:
    """One simulated machine of a cluster."""

    def __init__(self, cluster: Cluster, index: int, skew_s: int) -> None:
        self.index = index
        self.name = f"node-{index}"
        self.address = f"10.77.0.{10 + index}"
        self.folder = cluster.folder / self.name
        """Where the output of its processes is."""
        self.private = self.folder / "private"
        """Its local disk: no other host uses it, and it outlives a reboot."""
        self.frozen = False
        self.skew_s = skew_s
        self.skew = ground.skew_kind(skew_s)
        """Which of its clocks are shifted: `none`, `monotonic`, `wall` or `monotonic+wall`."""
        self.mac = f"02:77:00:00:00:{10 + index:02x}"
        self.port = f"v{index}"
        self.cgroup = ground.make_cgroup(cluster.mark, self.name)
        self._cluster = cluster
        self._plugged = True
        self._stopped: list[int] = []
        self._init: Init | None = None
        self._life: HostProcess | None = None
        self.private.mkdir(parents=True)

    @property
    def is_on(self) -> bool:
        """Whether it has power."""
        return self._init is not None

    # Processes

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        name: str | None = None,
    ) -> HostProcess:
        """Start a process; `env` is on top of ours and of what makes it this host. `name` is that of its output files.

        A `robust` command is forked where launchers are.
        """
        if host_warmth.is_command(argv) and host_warmth.is_wanted(argv, env or {}) and self.skew == "none":
            return self._fork(argv, {**self.environment(), **(env or {})}, cwd, name or "robust")
        assert self._init and not self.frozen, f"{self.name} is off or frozen: it can start nothing"
        stem = f"{next(self._cluster.numbers):03d}-{name or Path(argv[0]).name}"
        process = self._init.start(
            argv,
            env={**os.environ, **self.environment(), **(env or {})},
            cwd=cwd or self._cluster.shared,
            out_path=self.folder / f"{stem}.out",
            err_path=self.folder / f"{stem}.err",
        )
        self._cluster.processes.append(process)
        return process

    def launch(self, argv: Sequence[str], env: Mapping[str, str], *, pod: str = "") -> HostProcess:
        """Start a launcher, `[python, "-m", "robust_run", ...]`; or fork one, where the test wants that (see host_warmth.py).
        `pod`: in the container of a pod of this name.
        """
        if not host_warmth.is_wanted(argv, env) or self.skew != "none":
            argv = ["sh", "-ec", CONTAINER, "container", pod, *argv] if pod else argv
            return self.start(argv, env=env, name=pod or "robust-run")
        threads = {} if "--no-warm" in argv else {"OMP_NUM_THREADS": "1"}
        return self._fork(argv, {**self.environment(), **threads, **env}, None, pod or "robust-run", pod)

    def _fork(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path | str | None, name: str, pod: str = ""
    ) -> HostProcess:
        assert self._init and not self.frozen, f"{self.name} is off or frozen: it can start nothing"
        stem = f"{next(self._cluster.numbers):03d}-{name}"
        whole = {**os.environ, **env}
        del whole[host_warmth.WANTED]
        process = self._init.fork(
            host_warmth.zygote_for(argv, whole),
            argv,
            env=whole,
            cwd=cwd or self._cluster.shared,
            cgroup=self.cgroup,
            pod=pod,
            out_path=self.folder / f"{stem}.out",
            err_path=self.folder / f"{stem}.err",
        )
        self._cluster.processes.append(process)
        return process

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout_s: float = CALL_S, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a short command to its end. With `check`, anything but 0 is an AssertionError with its words."""
        process = self.start(argv, **more)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        said = f"{process.err}{process.out}".strip()
        assert not check or code == 0, f"{list(argv)} on {self.name} ended with {code}: {said}"
        return subprocess.CompletedProcess(list(argv), code, process.out, process.err)

    def job(self, run_id: str, log_dir: Path, *arguments: str, **more: Any) -> Job:
        """Start `robust-run` here. Pids in its journal are this host's: `pid_outside` translates."""
        argv = [sys.executable, "-m", "robust_run", "--log-dir", str(log_dir), "--run-id", run_id, *arguments]
        env = {"TEST_JOB": run_id, **more.pop("env", {})}
        process: Any = self.start(argv, env=env, name="robust-run", **more)
        return Job(process, log_dir, run_id)

    def environment(self) -> dict[str, str]:
        """Return the variables that differ on this host from the harness's."""
        places = {"TMPDIR": "/run/tmp", "XDG_RUNTIME_DIR": "/run/user", "XDG_STATE_HOME": str(self.private / "state")}
        return {**places, **(ground.faketime(self.skew_s) if "wall" in self.skew else {})}

    def pids(self) -> list[int]:
        """Return all its processes but process 1, as the harness sees them, dead ones not yet reaped excepted."""
        return (
            [pid for pid in ground.pids_in_namespace_of(self._init.pid) if pid != self._init.pid] if self._init else []
        )

    def pid_outside(self, pid: int) -> int:
        """Return the harness's number of the process that this host calls `pid`; LookupError if there is none."""
        found = [outside for outside in self.pids() if ground.innermost_pid(outside) == pid]
        if not found:
            raise LookupError(f"{self.name} has no process {pid}")
        return found[0]

    @property
    def root(self) -> Path:
        """Its file system, as the harness can reach it: `host.root / "dev/shm"`, `host.root / "run/tmp"`."""
        assert self._init, f"{self.name} is off"
        return Path(f"/proc/{self._init.pid}/root")

    # Cable

    def cut(self) -> None:
        """Pull its cable: packets vanish, both ways; nobody hears of it, and connections stay as they were."""
        self._plugged = False
        if self._init:
            self._cluster.ip(f"link set {self.port} down")

    def cut_from(self, *others: Host, one_way: bool = False) -> None:
        """Let packets from here to others vanish, and unless `one_way` those from there to here."""
        ways = {(self.index, other.index) for other in others}
        ways |= set() if one_way else {(there, here) for here, there in ways}
        self._cluster.blocked |= ways
        self._cluster.apply_blocked(ways)

    def heal(self) -> None:
        """Put the cable back, and end every `cut_from` that this host has a part in."""
        ways = {way for way in self._cluster.blocked if self.index in way}
        self._cluster.blocked -= ways
        self._cluster.apply_blocked(ways)
        if not self._plugged and self._init:
            self._cluster.ip(f"link set {self.port} up")
        self._plugged = True

    def apply_neighbours(self) -> None:
        """Tell its kernel who has which card, if it is on."""
        if self._init:
            ground.ip(self._init.pid, self._neighbours())

    def _neighbours(self) -> str:
        # Fixed, so that a dead host is silence: no question for its card that fails, no "no route to host".
        lines = []
        for other in self._cluster:
            if other is not self:
                card = NOBODY if (self.index, other.index) in self._cluster.blocked else other.mac
                lines.append(f"neigh replace {other.address} lladdr {card} nud permanent dev eth0\n")
        return "".join(lines)

    # Power

    def power_off(self) -> None:
        """Power loss: the link goes, then every process at once; no FIN and no RST reaches anybody."""
        if not self._init or not self._life:
            return
        self._cluster.ip(f"link set {self.port} down")
        with suppress(ProcessLookupError):
            os.kill(self._init.pid, signal.SIGKILL)
        self._life.wait(CALL_S)  # process 1 ends after all others
        # Connections that still had something to say live on without a process: they must never be heard again.
        self._cluster.ip(f"link delete {self.port}", ignore="device")  # it may go with the network of the host
        self._init.close()
        self._init = self._life = None
        self._stopped = []
        self.thaw()

    def power_on(self) -> None:
        """Boot: same name, address and `private`, nothing else of the former life. A cut cable stays cut."""
        assert not self._init, f"{self.name} is on"
        self._boot()
        self._wait_booted()

    def reboot(self) -> None:
        """Lose power and come back."""
        self.power_off()
        self.power_on()

    def _boot(self) -> None:
        card = f"link add eth0 address {self.mac} type veth peer name {self.port} netns /proc/self/fd/8\n"
        address = f"link set eth0 addrgenmode none\naddress add {self.address}/24 dev eth0\nlink set eth0 up\n"
        (self.folder / "card").write_text(f"link set lo up\n{card}{address}{self._neighbours()}")
        state = "up" if self._plugged else "down"
        (self.folder / "port").write_text(f"link set {self.port} master br0\nlink set {self.port} {state}\n")
        self._init = Init(self.name)
        self._life = self._cluster.boot(self, self._init)

    def _wait_booted(self) -> None:
        assert self._init
        self._init.wait_ready(self.folder / "boot.err")

    # Standing still

    def freeze(self) -> None:
        """Stop all its processes where they are, unseen by their parents if there are cgroups. Its kernel goes on to answer."""
        assert self._init, f"{self.name} is off"
        if not self.frozen:
            self.frozen = True
            self._stopped = ground.freeze(self.cgroup, self.pids)

    def thaw(self) -> None:
        """Let them go on."""
        if self.frozen:
            ground.thaw(self.cgroup, self._stopped)
            self.frozen = False


class Cluster:
    """A switch and its hosts, from `with` to its end, whatever happens in between."""

    def __init__(self, count: int, tmp_path: Path, *, skew_s: Mapping[int, int] | None = None) -> None:
        assert 1 <= count <= MOST_HOSTS, f"{count} hosts: a cluster has 1 to {MOST_HOSTS}"
        self.count = count
        self.shared = Path(tmp_path)
        """The working directory of processes by default."""
        self.mark = f"{ground.MARK}{os.getpid()}-{ground.started(os.getpid())}-{next(_numbers)}"
        self.processes: list[HostProcess] = []
        self.numbers = counter(1)
        self.blocked: set[tuple[int, int]] = set()
        self._skew_s = dict(skew_s or {})
        self._hosts: list[Host] = []
        self._switch = Init("the switch")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        try:
            ground.sweep()
            self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tear_down()

    def __getitem__(self, index: int) -> Host:
        return self._hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    wait_for = staticmethod(wait_for)

    def ip(self, line: str, ignore: str = "nothing") -> None:
        """Tell the switch's `ip` something; `ignore` is a refusal that is fine."""
        ground.ip(self._switch.pid, line, ignore)

    def apply_blocked(self, ways: set[tuple[int, int]]) -> None:
        """Make the hosts from which these ways lead follow `blocked`."""
        for index in {here for here, _ in ways}:
            self[index].apply_neighbours()

    def boot(self, host: Host, init: Init) -> HostProcess:
        """Start a host's process 1; return the process that lives exactly as long as the host."""
        skewed = ground.unshare_time(host.skew_s) if "monotonic" in host.skew else []
        argv = ["sh", "-ec", ground.BEFORE_UNSHARE, "boot", *ground.UNSHARE_HOST, *skewed, "--"]
        argv += ["sh", "-ec", ground.BOOT, "boot", str(host.folder), host.name, str(host.cgroup or ""), *PYTHON]
        log = host.folder / "boot.err"
        life = self._switch.start(argv, env=os.environ, cwd="/", out_path=log, err_path=log, stdin=init.theirs.fileno())
        self.processes.append(life)
        return life

    def _build(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hosts-", dir=self.shared))
        log = self.folder / "switch.err"
        with log.open("wb") as err:
            self._process = subprocess.Popen(
                ["unshare", "--net", "--pid", "--fork", "sh", "-ec", ground.SWITCH, self.mark, *PYTHON, self.mark],
                stdin=self._switch.theirs.fileno(),
                stdout=err,
                stderr=err,
                cwd="/",
                start_new_session=True,
            )
        self._hosts = [Host(self, index, self._skew_s.get(index, 0)) for index in range(self.count)]
        names = "".join(f"{host.address} {host.name}\n" for host in self)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{names}")
        self._switch.wait_ready(log)
        for host in self:
            host._boot()
        for host in self:
            host._wait_booted()

    def _tear_down(self) -> None:
        try:
            if self._switch.pid:
                with suppress(ProcessLookupError):
                    os.kill(self._switch.pid, signal.SIGKILL)
        finally:
            self._switch.close()  # enough by itself: the switch ends with its socket
            if self._process:
                self._process.wait(CALL_S)
            for host in self:
                if host._init:
                    host._init.close()
                    host._init = None
            for process in self.processes:
                process.poll()
            ground.remove_cgroups(self.mark)


@lru_cache(maxsize=1)
def supported() -> str:
    """Return why this machine cannot have hosts; empty if it can."""
    return ground.why_not()


def need_hosts() -> None:
    """Skip the test that calls this where there can be no hosts."""
    if reason := supported():
        import pytest

        pytest.skip(reason)
