"""Who leads after this controller: who is in line, whether anyone of them is there, and whether this node goes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from robust_run.launcher.controller.leadership.alone import Company
from robust_run.launcher.controller.leases import LeaseJournal
from robust_run.launcher.core.failure_detector import FailureDetector
from robust_run.launcher.core.membership import fewest_of

if TYPE_CHECKING:
    from robust_run.launcher.control.peer import Peer
    from robust_run.launcher.controller.controller import Controller
    from robust_run.launcher.controller.leadership.handing_over import Line
    from robust_run.launcher.model.job import ManyNodes


class Connections(Protocol):
    """What is asked of the `Service`."""

    controller: Controller | None
    detector: FailureDetector
    lease_record: LeaseJournal
    peers: dict[str, Peer]


class Succession:
    """The agents in line to lead after this controller."""

    def __init__(self, service: Connections, many: ManyNodes, host_agent: str) -> None:
        self.candidates: tuple[str, ...] = ()
        """HOST:PORT of those in line, as all agents were told last."""
        self._service = service
        self._many = many
        self._host_agent = host_agent
        self._is_begun = False

    def company(self) -> Company:
        """Return what is known of this leader's being alone (see `alone`)."""
        controller, peers = self._service.controller, self._service.peers
        others = len(peers) - (self._host_agent in peers)
        if controller is None or others or self._host_agent not in peers:
            return Company(others=others, is_stuck=False, lost_at_s=None)
        state = controller.state
        followers = [each for each in state.members.values() if each.gone == "lost" and each.info.candidate]
        return Company(
            others=0,
            is_stuck=state.runs_nothing and state.usable < fewest_of(controller.policy, state),
            lost_at_s=max((each.since_s for each in followers), default=None),
        )

    @property
    def host_has_left(self) -> bool:
        """Whether the node of this controller leaves the job in good order, which goes on."""
        state = self._service.controller.state if self._service.controller is not None else None
        if state is None or self._many.controller_standby == 0 or state.is_over or state.stop_signal is not None:
            return False
        member = state.members.get(self._host_agent)
        return member is not None and member.gone == "left"

    def line(self, now_s: float) -> Line:
        """Return whether an agent in line to lead is there, and answers."""
        from robust_run.launcher.controller.leadership.handing_over import line_of

        controller, detector, peers = self._service.controller, self._service.detector, self._service.peers
        assert controller is not None
        members = controller.state.members.values()
        there = [each.info.id for each in members if each.present and each.info.candidate in self.candidates]
        return line_of(
            [detector.silent_s(each, now_s) if each in peers else None for each in there], self._many.heartbeat_s
        )

    def has_changed(self) -> bool:
        """Line the next agents up anew; return whether that are others than all were told."""
        controller = self._service.controller
        if self._many.controller_standby == 0 or controller is None or not self._start_is_kept(controller):
            return False
        members, told = controller.state.members.values(), controller.state.told
        there = (m.info for m in members if m.present and m.info.id != self._host_agent and m.info.id not in told)
        able = (info.candidate for info in there if info.candidate)
        before, self.candidates = self.candidates, tuple(islice(able, self._many.controller_standby))
        return self.candidates != before

    def _start_is_kept(self, controller: Controller) -> bool:
        """Whether a successor would know of the job's start, and for how many nodes it has to wait: before, none may follow."""
        if not self._is_begun:
            self._is_begun = not controller.state.is_new and self._service.lease_record.is_kept()
        return self._is_begun
