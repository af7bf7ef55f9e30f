"""One line of all that a node fetches: not for a short start, and not more often than somebody reads."""

from __future__ import annotations

from robust_run.launcher.agent.fetch_line import AGAIN_S, FIRST_S, FetchLine
from robust_run.store import turn_table
from robust_run.store.rules.turns import Urgency


def test_it_is_said_when_a_start_takes_long_and_then_seldom() -> None:
    now_s, said = [100.0], list[str]()
    place = turn_table.begin({})
    line = FetchLine(place, now_s[0], said.append)
    table = turn_table.TurnTable(place, clock=lambda: now_s[0])
    for second in range(int(FIRST_S + AGAIN_S) + 1):
        now_s[0] = 100.0 + second
        table.say(turn_table.CHECKPOINT, Urgency.CHECKPOINT, second * 100_000_000, 4_000_000_000)
        line.look(now_s[0])
    assert said == [
        "fetching: checkpoint 500 MB of 4.0 GB (100 MB/s, 35 s left)",
        "fetching: checkpoint 1.5 GB of 4.0 GB (100 MB/s, 25 s left)",
    ]
    table.say(turn_table.CHECKPOINT, Urgency.CHECKPOINT, 4_000_000_000, 4_000_000_000, is_over=True)
    now_s[0] += AGAIN_S
    line.look(now_s[0])
    assert len(said) == 2, "nothing is fetched any more"
