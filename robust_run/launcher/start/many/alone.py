"""Controller on a node whose agent lives already: what `--resume` starts when only the controller had been given up.

It keeps the controller's process alive as an agent would, and runs no workers: those are the business of the agent that is
there, which finds the controller where it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping

import msgspec

from robust_run.clock import SystemClock
from robust_run.errors import RobustRunError, UserError
from robust_run.launcher.agent.signals import ENDING
from robust_run.launcher.agent.workers.process_tree import become_subreaper
from robust_run.launcher.control.meeting import Host, SystemNetwork, meet
from robust_run.launcher.control.sockets import spoken
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.leadership.leaders import not_here
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.start.console import Console
from robust_run.launcher.start.many.controller_supervisor import ControllerSupervisor


class ControllerAlone:
    """The process between the guard and the controller. Told to end, it ends the controller and leaves the job alone."""

    def __init__(
        self,
        spec: JobSpec,
        many: ManyNodes,
        env: Mapping[str, str],
        mask: set[int],
        lifeline: int,
        config: ControllerConfig,
    ) -> None:
        self._spec = spec
        self._many = many
        self._mask = mask
        self._env = env
        self._lifeline = lifeline
        self._config = config
        self._console = Console(spec, SystemClock())

    def run(self) -> int:
        """Run until the job is over and return an exit code."""
        try:
            become_subreaper()
            return asyncio.run(self._run())
        except RobustRunError as error:
            self._console.say(str(error))
            return error.exit_code
        finally:
            self._console.close()

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        self._console.router.attach(loop)
        over: asyncio.Future[int] = loop.create_future()

        def end(code: int) -> None:
            if not over.done():
                over.set_result(code)

        def on_lifeline() -> None:
            received = os.read(self._lifeline, 64)
            for number in received or (signal.SIGKILL,):
                if number in ENDING or number in self._spec.end_signals or number == signal.SIGKILL:
                    end(128 + number)

        place = await asyncio.to_thread(meet, self._many, SystemNetwork())
        if not isinstance(place, Host):
            raise UserError(not_here(self._many))
        supervisor = ControllerSupervisor(self._mask, dict(self._env), self._console.say)
        supervisor.on_ended = end
        os.set_blocking(self._lifeline, False)
        loop.add_reader(self._lifeline, on_lifeline)
        for number in {*ENDING, *self._spec.end_signals}:
            loop.add_signal_handler(number, end, 128 + number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        address = spoken(place.addresses[0], place.port)
        supervisor.start(msgspec.structs.replace(self._config, address=address), place.socket)
        self._console.say("the agent of this node is alive: only its controller is started")
        code = await over
        await supervisor.close(wait=False)
        return code
