"""Evidence collector: asks the agents what they see of their ranks and has it judged: when a rank waits too long, when
an attempt died, and when a person wants to know. The judging is pure (`tracer.verdict`); here is only the asking.

What is seen is too much for the journal, so it lives here; the journal gets what it says (`Inquired`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Collect, Inquire, Order, RecordIncident
from robust_run.launcher.model.events import Event, Inquired
from robust_run.launcher.model.job import Sights, flows_of, ops_of
from robust_run.tracer.types import RankSight, Scene, SceneLook

if TYPE_CHECKING:
    from robust_run.tracer.verdict import RankPatience

#: How long agents may take to answer: taking samples, py-spy where it is needed, and the way.
ANSWER_S = 6.0
#: Scenes with more of NCCL's flows take longer than a moment to be judged (some 50 us a flow); how often is asked whether it is
#: done.
FLOWS_AT_ONCE = 8192
ASK_S = 0.05


class EvidenceRound(msgspec.Struct, kw_only=True):
    """One question to all nodes of an attempt."""

    attempt: int
    awaited: set[str]
    sights: list[RankSight] = []
    then: Callable[[Scene], None]
    timer: Any = None


class EvidenceCollector:
    """The questions under way."""

    def __init__(
        self,
        *,
        state: JobState,
        clock: Clock,
        send: Callable[[str, Order], None],
        later: Callable[[float, Callable[[], None]], Any],
        tell: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        self.scene: Scene | None = None
        """The newest that was judged."""
        self._state = state
        self._clock = clock
        self._send = send
        self._later = later
        self._tell = tell
        self._say = say
        self._rounds: dict[int, EvidenceRound] = {}
        self._number = 0
        self._dead: list[RankSight] = []
        self._dead_attempt = -1
        self._has_said = False
        self._has_said_hidden = False
        self._looks = 0
        self._harmless = Harmless("judging what ranks do", say)

    def scene_of(self, incident: RecordIncident) -> Scene | None:
        """Return what an incident was concluded from; None where that is not what ranks did: what they did before it began
        explains nothing.
        """
        scene = self.scene
        if scene is None or scene.attempt != incident.attempt or scene.at_s < incident.onset_at_s:
            return None
        return scene

    # --- a rank waits too long

    def begin(self, order: Inquire) -> None:
        """Look until there is a verdict, or nothing is wrong."""
        from robust_run.tracer.verdict import RankPatience

        patience = RankPatience(after_s=order.after_s) if order.after_s > 0 else RankPatience()
        self._has_said, self._looks = False, 0
        if order.leftovers:
            self._look_at_leftovers(order.attempt, patience)
        else:
            self._look(order.attempt, patience, None)

    def _look_at_leftovers(self, attempt: int, patience: RankPatience) -> None:
        """See who still runs when most ranks have ended."""
        from robust_run.tracer.verdict import look_at_leftovers

        def judge(scene: Scene) -> None:
            if not self._is_going(attempt):
                return
            self.scene = scene
            self._say_hidden(scene)
            try:
                found: SceneLook | Exception = look_at_leftovers(scene, patience.after_s)
            except Exception as error:
                found = error
            self._conclude(attempt, patience, scene, found)

        if self._is_going(attempt):
            self.ask(judge)

    def _look(self, attempt: int, patience: RankPatience, before: tuple[Scene, SceneLook] | None) -> None:
        if self._is_going(attempt):
            self.ask(lambda scene: self._judge(attempt, patience, before, scene))

    def _judge(
        self, attempt: int, patience: RankPatience, before: tuple[Scene, SceneLook] | None, scene: Scene
    ) -> None:
        if not self._is_going(attempt):
            return
        self.scene = scene
        self._say_hidden(scene)
        self._looks += 1
        if _flows(scene) <= FLOWS_AT_ONCE:
            self._conclude(attempt, patience, scene, _looked(scene, patience, before))
            return
        # Leases are to be renewed meanwhile, so that is not done here.
        found: list[SceneLook | Exception] = []
        thread = threading.Thread(target=lambda: found.append(_looked(scene, patience, before)), daemon=True)
        thread.start()

        def ask() -> None:
            if found:
                self._conclude(attempt, patience, scene, found[0])
            elif self._is_going(attempt):
                self._later(ASK_S, ask)

        self._later(ASK_S, ask)

    def _say_hidden(self, scene: Scene) -> None:
        """Say once that the kernel hides what ranks wait for: what cannot be seen is not told with each verdict."""
        if self._has_said_hidden or not any(sight.hidden for sight in scene.ranks):
            return
        from robust_run.tracer.verdict.hidden import hidden_words

        self._has_said_hidden = True
        self._say(hidden_words(scene.ranks))

    def _conclude(self, attempt: int, patience: RankPatience, scene: Scene, outcome: SceneLook | Exception) -> None:
        """Tell what came of a look, or look again."""
        if not self._is_going(attempt):
            return
        found = self._sound(outcome)
        if found.verdict is None and found.again_s is not None:
            if found.reason and not self._has_said and self._looks > 1:
                self._has_said = True
                self._say(f"{found.reason}; looking again")
            self._later(found.again_s, lambda: self._look(attempt, patience, (scene, found)))
            return
        now_s = self._clock.unix_s()
        self._tell(Inquired(attempt=attempt, verdict=found.verdict, reason=found.reason, at_unix_s=now_s))
        if found.verdict is not None and found.verdict.kind == "slow" and self._is_going(attempt):
            # Who is slow is found beside the question, whose answer is that nobody is stuck.
            self._tell(Inquired(attempt=attempt, reason=found.reason, at_unix_s=now_s))

    def _sound(self, outcome: SceneLook | Exception) -> SceneLook:
        if isinstance(outcome, Exception):
            self._harmless.failed(outcome)
        if self._harmless.has_failed or isinstance(outcome, Exception):
            return SceneLook(reason="a fault of robust-run")
        return outcome

    def _is_going(self, attempt: int) -> bool:
        return self._state.attempt == attempt and self._state.is_training

    # --- an attempt died

    def has_left(self, attempt: int) -> bool:
        """Whether ranks of an attempt that ended have left behind what can be judged."""
        return bool(self._dead) and self._dead_attempt == attempt

    def post_mortem(self, attempt: int) -> Inquired:
        """Return what the ranks' records say of an attempt that is over. Always answers: the core waits for it."""
        at_s = self._clock.unix_s()
        if not self.has_left(attempt):
            return Inquired(attempt=attempt, reason="nothing is left of its ranks", at_unix_s=at_s)
        scene = self._scene(attempt, self._dead)
        self._dead = []
        try:
            from robust_run.tracer.verdict import post_mortem

            verdict = post_mortem(scene, self.scene)
        except Exception as error:
            self._harmless.failed(error)
            return Inquired(attempt=attempt, reason="a fault of robust-run", at_unix_s=at_s)
        if verdict is None:
            return Inquired(attempt=attempt, reason="what they left behind does not say why they ended", at_unix_s=at_s)
        self.scene = scene
        return Inquired(attempt=attempt, verdict=verdict, at_unix_s=at_s)

    # --- asking

    def ask(self, then: Callable[[Scene], None], *, samples: int = 3) -> bool:
        """Have all nodes of the attempt look at their ranks, then call with what they see. False if nothing runs."""
        state = self._state
        nodes = [place.node for place in state.layout if place.node in state.unended]
        if not nodes or not state.has_ranks:
            return False
        self._number += 1
        number = self._number
        round_ = EvidenceRound(attempt=state.attempt, awaited=set(nodes), then=then)
        self._rounds[number] = round_
        round_.timer = self._later(ANSWER_S, lambda: self._close(number))
        order = Collect(
            attempt=state.attempt,
            number=number,
            samples=samples,
            ops=ops_of(state.world_size),
            flows=flows_of(state.world_size),
        )
        for node in nodes:
            self._send(node, order)
        return True

    def take(self, node: str, seen: Sights) -> None:
        """Take in what an agent sees."""
        host = name_of(self._state, node)
        member = self._state.members.get(node)
        address = member.info.address if member is not None else ""
        sights = [msgspec.structs.replace(sight, node=host, address=address) for sight in seen.sights]
        if seen.number < 0:
            if seen.attempt != self._dead_attempt:
                self._dead, self._dead_attempt = [], seen.attempt
            self._dead += sights
            return
        round_ = self._rounds.get(seen.number)
        if round_ is None or node not in round_.awaited:
            return
        round_.awaited.discard(node)
        round_.sights += sights
        if not round_.awaited:
            self._close(seen.number)

    def _close(self, number: int) -> None:
        round_ = self._rounds.pop(number, None)
        if round_ is None:
            return
        round_.timer.cancel()
        round_.then(self._scene(round_.attempt, round_.sights, round_.awaited))

    def _scene(self, attempt: int, sights: list[RankSight], silent: set[str] = frozenset()) -> Scene:  # type: ignore[assignment]
        return Scene(
            at_s=self._clock.monotonic_s(),
            at_unix_s=self._clock.unix_s(),
            attempt=attempt,
            world_size=self._state.world_size,
            ranks=tuple(sorted(sights, key=lambda sight: sight.rank)),
            silent_nodes=tuple(sorted(name_of(self._state, node) for node in silent)),
        )


def _looked(scene: Scene, patience: RankPatience, before: tuple[Scene, SceneLook] | None) -> SceneLook | Exception:
    """Return what a scene says, or why it could not be judged. In any thread."""
    from robust_run.tracer.verdict import look

    try:
        if before is None:
            return look(scene, patience)
        return look(scene, patience, previous=before[0], worked=dict(before[1].worked))
    except Exception as error:
        return error


def _flows(scene: Scene) -> int:
    return sum(len(sight.nccl.flows) for sight in scene.ranks if sight.nccl is not None)
