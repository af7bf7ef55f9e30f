"""Client of `robust check --node NAME | --all`: checks of a job's nodes, asked of the controller, shown as they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.errors import PlatformError
from robust_run.health.checks.plan import Wish
from robust_run.health.checks.show import ChecksReport
from robust_run.launcher.operator.reading.which import controller
from robust_run.launcher.operator.views.check_words import CheckBegun, CheckView, CheckWish

#: What one question waits for news.
WAIT_S = 20.0


def check_nodes(
    env: Mapping[str, str], run: str, nodes: Sequence[str], wish: Wish, say: Callable[[str], None]
) -> ChecksReport:
    """Have nodes of a run checked (none named: all that nothing runs on), say how it goes, return what came of it.

    Raises PlatformError where no controller answers, or it does not do that: these nodes train.
    """
    target = controller(env, run=run, log_dir="", url="", token_file="", tls_ca="")
    body = CheckWish(
        nodes=tuple(nodes),
        only=wish.only,
        seconds=wish.seconds,
        passes=wish.passes,
        limit_s=wish.limit_s,
        folder=wish.folder,
    )
    begun = msgspec.json.decode(target.post("/v1/checks", body), type=CheckBegun)
    for sentence in begun.left_out:
        say(f"left out: {sentence}")
    say(f"checking {len(begun.nodes)} node{'s' if len(begun.nodes) != 1 else ''}: {', '.join(begun.nodes[:8])}")
    after = 0
    while True:
        data = target.get(f"/v1/checks/{begun.number}", {"after": after, "wait": WAIT_S}, WAIT_S)
        view = msgspec.json.decode(data, type=CheckView)
        after = view.next
        for line in view.lines:
            say(line)
        if view.is_over:
            break
    if view.report is None or view.given_up:
        raise PlatformError(f"the checks were given up: {view.given_up or 'no node answered'}")
    return view.report
