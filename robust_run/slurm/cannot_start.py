"""A node of a step whose task cannot start the job tells the controller so: who waits for it need not wait any longer.

The other direction of `turning_away`. It proves like any agent that it knows the job's token, and does not join. Where that
cannot be done (another token, no network), the others wait as long as they would have.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence

from robust_run import tls
from robust_run.errors import RobustRunError
from robust_run.launcher.control.client import dial
from robust_run.launcher.control.errors import JoinRefusal
from robust_run.launcher.control.messages import Hello
from robust_run.launcher.model.job import ManyNodes, NodeInfo
from robust_run.version import __version__

#: How long the controller on the first node, whose task may have begun a little later, is looked for.
LONGEST_S = 30.0
DIAL_S, RETRY_S = 5.0, 0.5
MOST_REASON = 500


def tell(
    many: ManyNodes, ports: Sequence[int], token: str, node: str, reason: str, *, longest_s: float = LONGEST_S
) -> bool:
    """Tell the controller that this node will not come; return whether it has heard it. Blocks at most so long."""
    context = tls.client_context(many.tls_cert, many.tls_key, many.tls_ca) if many.tls_cert or many.tls_ca else None
    info = NodeInfo(id=os.urandom(8).hex(), name=node, nproc=1, version=__version__)
    said = " ".join(reason.split())[:MOST_REASON]
    hello = Hello(node=info, job=many.job, nnodes=f"{many.fewest}:{many.most}", cannot_start=said)

    async def once(port: int) -> bool:
        try:
            connection = await dial(many.host, port, token.encode(), hello, ssl_context=context, timeout_s=DIAL_S)
        except JoinRefusal as refusal:
            return (
                refusal.final
            )  # so answers a controller that has taken note, and a first node that cannot start either
        except (OSError, TimeoutError, RobustRunError):
            return False
        connection.close()
        return False

    give_up_at_s = time.monotonic() + longest_s
    while True:
        for port in ports:
            try:
                if asyncio.run(once(port)):
                    return True
            except socket.gaierror:
                continue
        if time.monotonic() >= give_up_at_s:
            return False
        time.sleep(RETRY_S)
