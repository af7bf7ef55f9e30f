"""Lookout of a node that has no controller: what it remembers, what is on record where its job's nodes meet, and who answers.

What follows from that is decided in `founding`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.control.meeting import is_loopback
from robust_run.launcher.controller.leadership.choice import open_runs, register_of
from robust_run.launcher.controller.leadership.job_runs import RunOnRecord
from robust_run.launcher.controller.leadership.leaders import answers
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.job_identity import identity_of
from robust_run.launcher.model.lease_times import leader_ttl_s, lease_times, longest_hold_s
from robust_run.launcher.records.left_behind import left_for_s
from robust_run.launcher.records.rendezvous_marks import RendezvousMark, read_marks, remove_mark
from robust_run.launcher.records.shared_folders import on_shared_file_system
from robust_run.launcher.start.many import presence
from robust_run.launcher.start.many.founding import Founding, Known, RunSeen, decide

#: How long the place may take to answer.
ANSWER_S = 5.0
#: Between two looks of a node that waits to know more, and of one that waits for a controller where the nodes meet.
LOOK_S, LOOK_SELDOM_S = 1.0, 5.0
#: Turns of candidates, each as long as a leader's lease, that a leader may be silent before others than its candidates act.
TURNS = 3.0


class Lookout:
    """What one node knows of its job before it has a part in it."""

    def __init__(
        self, spec: JobSpec, many: ManyNodes, folder: str, host: str, clock: Clock, say: Callable[[str], None]
    ) -> None:
        """`folder`: of this node's marks; empty: none are kept."""
        self._spec, self._many, self._host, self._clock, self._say = spec, many, host, clock, say
        self._folder = folder
        self._identity = identity_of(spec)
        self._moves = many.controller_standby > 0
        self._runs = open_runs(spec, clock) if self._moves else None
        self._usual_ttl_s = leader_ttl_s(lease_times(many).lease_s)
        self._leader_ttl_s = 0.0
        """Of who led last, as far as that is on record."""
        self._place = many.coordinator or register_of(spec.log_dir or "")
        self._marks = self._read_marks()
        self._sign: tuple[str, str] | None = None
        self._sign_since_s = self._began_s = clock.monotonic_s()
        self._look_at_s = 0.0
        self._said = ""
        self._newest = Founding(act="wait")
        self._is_shared: bool | None = True if many.coordinator else None
        """None: not known yet."""
        self._doubted: dict[str, tuple[tuple[str, str] | None, float]] = {}
        """HOST:PORT of leaders on record that let nobody in: the sign of life then, and until when they are left alone."""

    @property
    def _patience_s(self) -> float:
        return TURNS * max(self._usual_ttl_s, self._leader_ttl_s)

    @property
    def remembered(self) -> tuple[str, ...]:
        """Where a controller may be, by what this node remembers: HOST:PORT, the newest first."""
        found = (where for mark in reversed(self._marks) for where in mark.addresses)
        return tuple(dict.fromkeys(found))

    async def look(self) -> Founding:
        """Return what is to be done, by what was seen last; looks again when it is time. Says once why it has to wait."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_s:
            self._newest = decide(await self._known())
            self._look_at_s = now_s + (LOOK_S if self._newest.act == "wait" else LOOK_SELDOM_S)
        return self._newest

    def doubt(self, where: str) -> bool:
        """Note that HOST:PORT took a connection and did not let this node in: a starved leader, or another program by now.

        It counts as one that does not answer for some turns, and for as long as the record shows no sign of life: then others
        act. Return whether this is the first doubt; after that there was a sign of life, so it is the leader who refuses.
        """
        is_first = where not in self._doubted
        self._doubted[where] = self._sign, self._clock.monotonic_s() + self._patience_s
        self._look_at_s = 0.0
        return is_first

    def _is_doubted(self, where: str, now_s: float) -> bool:
        sign, until_s = self._doubted.get(where, (None, 0.0))
        return where in self._doubted and (now_s < until_s or sign == self._sign)

    def explain(self) -> None:
        """Say what this node is about to do, or waits for, once."""
        text = self._newest.say
        if text and text != self._said:
            self._said = text
            self._say(text)

    async def _known(self) -> Known:
        many = self._many
        run, trouble = None, ""
        if self._runs is not None:
            try:
                newest = await asyncio.wait_for(self._runs.newest(), ANSWER_S)
                run = await self._seen(newest) if newest is not None else None
                if self._is_shared is None and (run is None or not run.answers):  # which asks the file system, too
                    asking = asyncio.to_thread(on_shared_file_system, self._spec.log_dir or "/")
                    self._is_shared = await asyncio.wait_for(asking, ANSWER_S)
            except PlatformError as error:
                trouble = str(error)
            except asyncio.TimeoutError:
                trouble = f"no answer within {ANSWER_S:g} s"
        return Known(
            moves=self._moves,
            scheduled=self._spec.slurm is not None,
            forced=many.found,
            place=self._place,
            trouble=trouble,
            is_shared=bool(self._is_shared),
            run=run,
            remembers=self._marks[-1].run_id if self._marks else "",
            named=many.job if many.job == self._spec.run_id and self._spec.slurm is None else "",
            fewest=many.fewest,
            most=many.most,
            watched_s=self._clock.monotonic_s() - self._began_s,
            patience_s=self._patience_s,
            hold_s=longest_hold_s(many) if self._moves else await self._hold_s(),
        )

    async def _hold_s(self) -> float:
        """Return for how long workers may live of the runs that this node remembers: as their journals say, if they are here."""
        longest_s = longest_hold_s(self._many)
        paths = [os.path.join(mark.log_dir, mark.run_id, "journal.jsonl") for mark in self._marks if mark.log_dir]
        if len(paths) < len(self._marks):
            return longest_s
        try:
            known = await asyncio.wait_for(asyncio.to_thread(lambda: [*map(left_for_s, paths)]), ANSWER_S)
        except asyncio.TimeoutError:
            return longest_s
        return max((longest_s if left_s is None else left_s for left_s in known), default=0.0)

    async def _seen(self, newest: RunOnRecord) -> RunSeen:
        standing, now_s = newest.standing, self._clock.monotonic_s()
        is_same = newest.command in ("", self._identity.command)
        if standing is None:
            return RunSeen(run_id=newest.run_id, number=newest.number, gone=True)
        sign = (newest.run_id, standing.sign or "")
        if standing.sign is None or sign != self._sign:
            self._sign, self._sign_since_s = sign, now_s
        self._leader_ttl_s = standing.ttl_s
        leader = standing.leader
        where = leader.address if leader is not None and not standing.over else ""
        if leader is not None and leader.host != self._host and is_loopback(where.rpartition(":")[0].strip("[]")):
            where = ""  # true on that machine only
        return RunSeen(
            run_id=newest.run_id,
            number=newest.number,
            over=standing.over,
            leader=where,
            host=leader.host if leader is not None else "",
            answers=bool(where) and not self._is_doubted(where, now_s) and await answers(where),
            silent_s=now_s - self._sign_since_s,
            same_command=is_same,
        )

    # --- marks

    def _read_marks(self) -> list[RendezvousMark]:
        """Return what agents noted here that live no more; one that lives is a neighbour."""
        if not self._folder:
            return []
        marks = read_marks(self._folder, self._identity.key, self._spec.log_dir or "")
        return [mark for mark in marks if not presence.is_alive(mark.agent)]

    def forget(self) -> None:
        """Remove what this node remembers of runs before the one that it has a part in now."""
        for mark in self._marks:
            remove_mark(self._folder, mark)
        self._marks = []

    async def close(self) -> None:
        """Let go of connections."""
        if self._runs is not None:
            await self._runs.close()
