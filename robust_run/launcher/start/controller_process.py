"""The process that is the controller of a job of several nodes: a child of the agent that hosts it.

It is a process of its own so that it can die without a worker noticing. Its agent starts it again, and it continues from the
journal; or a candidate on another node is elected and does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.errors import RobustRunError, UserError
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.leadership.types import JobFinished
from robust_run.launcher.start.console import Console
from robust_run.launcher.start.controller_lifecycle import ControllerProcess
from robust_run.launcher.start.needed_later import CONTROLLER, import_ahead
from robust_run.launcher.start.priority import raise_priority

#: Schedulers signal every process of a job. What a signal means is the agents' to say; this process ends with its agent.
IGNORED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTOU,
)


def main(descriptor: int) -> None:
    """Be the controller, charged by what `descriptor` holds; never returns."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        config = msgspec.json.decode(file.read(), type=ControllerConfig)
    raise_priority()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    clock = SystemClock()
    console = Console(config.spec, clock)
    code = 70
    try:
        code = asyncio.run(_guarded(config, console, clock))
    except JobFinished:
        code = 0
    except RobustRunError as error:
        console.say(str(error))
        code = error.exit_code if isinstance(error, UserError) else 1
    except BaseException:
        import traceback

        console.say(f"a fault of robust-run ended the controller; please report it: {traceback.format_exc()}")
    finally:
        console.close()
        sys.stdout.flush()
        os._exit(code)


async def _guarded(config: ControllerConfig, console: Console, clock: Clock) -> int:
    """Run; a fault of ours ends the process, and the agent starts another one from the journal."""
    loop = asyncio.get_running_loop()
    console.router.attach(loop)
    fault: asyncio.Future[int] = loop.create_future()

    def on_bug(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        loop.default_exception_handler(context)
        if not fault.done():
            fault.set_result(70)

    loop.set_exception_handler(on_bug)
    import_ahead(loop.call_later, *CONTROLLER)
    run = asyncio.ensure_future(ControllerProcess(config, console, clock).run())
    await asyncio.wait({run, fault}, return_when=asyncio.FIRST_COMPLETED)
    return run.result() if run.done() else fault.result()
