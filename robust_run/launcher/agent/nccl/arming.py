"""Arms NCCL tracing in the workers of a node: whether it is done, and then a file and some variables for each of them.

NCCL loads the plugin that NCCL_PROFILER_PLUGIN names when it makes its first communicator; the plugin writes into the file that
ROBUST_NCCL_TRACE names (see `tracer.nccl`). Neither can be taken back before the program runs, so children of a worker inherit
both: the file belongs to the first process that uses it. A plugin of the user's own is left in place. Nothing here ends a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.agent.nccl.facts import PLUGIN_VARIABLE, Machine, NcclFacts, look, this_machine
from robust_run.launcher.agent.workers.environment import without_outer_nccl
from robust_run.launcher.model.job import JobSpec
from robust_run.tracer.sight.ras_port import RasPort

if TYPE_CHECKING:
    from robust_run.launcher.agent.workers.store import StartsHelpers

#: The first NCCL with an interface that tells who does what for whom.
FIRST_VERSION = (2, 26)
#: Part of the free memory file system that our files may take unasked: NCCL keeps buffers there, and fails where they do not fit.
SHARE = 10
#: How long an attempt has run when the plugin is compiled beside it: later than the imports of its workers.
BUILD_AFTER_S = 10.0

_MEMORY = "/dev/shm"  # noqa: S108 - only to be named
_BUILD = (
    "import sys; del sys.path[0]; from robust_run.tracer.plugin.build import ensure; "
    "reason = ensure().reason; print(f'robust-run: {reason}') if reason else None"
)

Weight = Literal["silent", "noted", "said"]
"""silent: the user did not ask. noted: in the journal and in `robust status`. said: on the terminal, too."""


class ArmingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether NCCL is traced, and why or why not."""

    plugin: str = ""
    """What NCCL shall load; empty: nothing."""
    build: bool = False
    """Not yet: the plugin is to be compiled."""
    sentence: str
    weight: Weight


def decide(option: str, env: Mapping[str, str], needed_bytes: int, facts: NcclFacts) -> ArmingDecision:
    """Return whether workers with this environment are traced. `needed_bytes`: what all their files may grow to. Pure."""
    asked = option == "on"
    reason, build = _why_not(option, env, needed_bytes, facts)
    if reason:
        is_news = asked or (option == "auto" and facts.devices)
        weight: Weight = "said" if asked else "noted" if is_news else "silent"
        return ArmingDecision(sentence=f"NCCL is not traced: {reason}", weight=weight, build=build)
    of = f"version {'.'.join(map(str, facts.version))}" if facts.version else "of unknown version"
    though = "" if facts.devices else ", though no NVIDIA device is visible on this node"
    return ArmingDecision(plugin=facts.plugin, sentence=f"NCCL ({of}) is traced{though}", weight="noted")


def _why_not(option: str, env: Mapping[str, str], needed_bytes: int, facts: NcclFacts) -> tuple[str, bool]:
    """Return why NCCL is not traced, and whether compiling would change that; empty: it is."""
    if option == "off":
        return "--trace-nccl off", False
    if env.get("ROBUST_TRACE") == "0":
        return "ROBUST_TRACE=0 switches all tracing off", False
    if option == "auto" and not facts.devices:
        return "no NVIDIA device is visible on this node", False
    if facts.own:
        return f"the job has a profiler plugin of its own ({facts.own}), and NCCL takes only one", False
    if facts.version is not None and facts.version < FIRST_VERSION:
        version, first = (".".join(map(str, number)) for number in (facts.version, FIRST_VERSION))
        return f"NCCL {version} is here, and {first} is the first that can be", False
    if room := _no_room(option, needed_bytes, facts.free_bytes):
        return room, False
    if not facts.plugin:
        return facts.trouble or "its plugin must be compiled first; the next attempt has it", True
    return "", False


def _no_room(option: str, needed_bytes: int, free_bytes: int | None) -> str:
    """Return what is wrong with the place for the files; empty: nothing."""
    if free_bytes is None:
        return f"{_MEMORY} cannot be used, and a file on a disk would make NCCL's threads wait for it"
    least = needed_bytes if option == "on" else needed_bytes * SHARE
    if free_bytes >= least:
        return ""
    return f"{_MEMORY} has {free_bytes >> 20} MiB free and {-(-least >> 20)} MiB are wanted; make it larger (docker --shm-size)"


class NcclArming:
    """NCCL's tracing on one node, from attempt to attempt."""

    def __init__(
        self,
        spec: JobSpec,
        env: Mapping[str, str],
        memory: str | None,
        say: Callable[[str], None],
        start_helper: StartsHelpers,
        machine: Machine | None = None,
    ) -> None:
        """`env` is what the workers' environments are made of, `memory` the folder for their files, None if it is on a disk."""
        self._option = spec.trace_nccl
        self._nproc = spec.nproc
        self._env = without_outer_nccl(env)
        self._memory = memory
        self._say = say
        self._start_helper = start_helper
        self._machine = machine
        self._decision: ArmingDecision | None = None
        self._told = ""
        self._has_built = False
        self._trouble = ""
        self._has_complained = False
        self._ras = RasPort()

    def begin(self) -> str:
        """Decide for an attempt that is about to start. Return the sentence for its journal if that is news, else empty."""
        if self._decision is None or self._decision.build:
            self._decision = self._decide()
        decision = self._decision
        if decision.weight == "silent" or decision.sentence == self._told:
            return ""
        self._told = decision.sentence
        if decision.weight == "said":
            self._say(f"{decision.sentence}; the job runs without")
        return decision.sentence

    def _decide(self) -> ArmingDecision:
        if self._option == "off":
            return decide(self._option, self._env, 0, NcclFacts(devices=False))
        machine = self._machine = self._machine or this_machine()
        facts = look(self._option, self._env, self._memory, machine)
        needed_bytes = _needed_bytes(self._nproc) if facts.devices or self._option == "on" else 0
        facts = msgspec.structs.replace(facts, trouble=self._trouble)
        decision = decide(self._option, self._env, needed_bytes, facts)
        if decision.build and self._option == "on" and not self._has_built:
            self._has_built = True
            path, self._trouble = machine.ensure()
            facts = msgspec.structs.replace(facts, plugin=path, trouble=self._trouble)
            decision = decide(self._option, self._env, needed_bytes, facts)
        return decision

    def variables(self, steps_file: str) -> dict[str, str]:
        """Make the file of a rank; return what is to be added to its environment, nothing where NCCL is not traced."""
        if self._decision is None or not self._decision.plugin:
            return {}
        from robust_run.tracer.plugin import layout

        path = f"{steps_file}{layout.SUFFIX}"
        try:
            layout.create(path)
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                self._say(f"cannot make {path} ({error.strerror or error}): NCCL is not traced; the job runs without")
            return {}
        return {PLUGIN_VARIABLE: self._decision.plugin, layout.PATH_VARIABLE: path, **self._ras.variables(self._env)}

    @property
    def ras_address(self) -> str:
        """Where the workers' RAS, NCCL's own watch over a job, was told to listen: HOST:PORT; empty: it was not."""
        return self._ras.address

    def close(self) -> None:
        """Give up what is held for the job."""
        self._ras.close()

    def build_beside(self, python: str, age_s: float) -> None:
        """Compile the plugin in a process of its own, once, if the next attempt needs it. Call now and then."""
        if self._has_built or age_s < BUILD_AFTER_S or self._decision is None or not self._decision.build:
            return
        self._has_built = True
        self._trouble = "its plugin had to be compiled, and is not ready or could not be (store.log says why)"
        with suppress(PlatformError):  # it stays uncompiled, which is what the sentence says
            self._start_helper((python, "-c", _BUILD), self._env, ())


def _needed_bytes(nproc: int) -> int:
    from robust_run.tracer.plugin import layout

    return nproc * layout.FILE_BYTES
