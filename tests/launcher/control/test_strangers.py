"""Who has to go where there are too many strangers: never one of few for the sake of one of many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.control.strangers import Strangers

Comings = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(Comings, st.data())
def test_the_oldest_of_the_address_with_most_goes_first(addresses: list[int], data: st.DataObject) -> None:
    strangers: Strangers[int] = Strangers()
    here: dict[int, int] = {}
    for number, address in enumerate(addresses):
        strangers.add(number, str(address))
        here[number] = address
        if data.draw(st.booleans()) and here:
            gone = data.draw(st.sampled_from(sorted(here)))
            strangers.remove(gone)
            del here[gone]
        assert len(strangers) == len(here)
        assert strangers.all() == tuple(sorted(here))
        if here:
            first = strangers.first_to_go()
            counts = [sum(other == address for other in here.values()) for address in here.values()]
            assert sum(other == here[first] for other in here.values()) == max(counts)
            assert first == min(number for number, address in here.items() if address == here[first])


def test_an_agent_is_not_sent_away_for_a_crowd_that_came_before_or_after_it() -> None:
    strangers: Strangers[str] = Strangers()
    for number in range(3):
        strangers.add(f"early {number}", "10.0.0.66")
    strangers.add("agent", "10.0.0.7")
    for number in range(1000):
        strangers.add(f"late {number}", "10.0.0.66")
        strangers.remove(strangers.first_to_go())
        assert "agent" in strangers
