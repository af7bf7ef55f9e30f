"""Who is woken by the first notice of a storm needs no fortieth; none is left out without being counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.records.notify.limiter import Limiter


def test_a_burst_passes_and_then_one_for_each_time() -> None:
    limiter = Limiter(burst=3, every_s=10.0, tokens=3.0)
    passed = []
    for second in range(60):
        limiter, passes = limiter.offer(float(second))
        if passes:
            passed.append(second)
    assert passed == [0, 1, 2, 10, 20, 30, 40, 50]


def test_what_is_left_out_is_counted_until_one_passes() -> None:
    limiter = Limiter(burst=1, every_s=100.0, tokens=1.0)
    limiter, first = limiter.offer(0.0)
    limiter, _ = limiter.offer(1.0)
    limiter, _ = limiter.offer(2.0)
    assert (first, limiter.suppressed) == (True, 2)
    limiter, passes = limiter.offer(101.0)
    assert (passes, limiter.suppressed) == (True, 0)


def test_what_must_pass_passes() -> None:
    limiter = Limiter(burst=1, tokens=0.0, at_s=0.0)
    limiter, passes = limiter.offer(0.0, must=True)
    assert passes
    assert limiter.tokens == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), max_size=60))
def test_no_more_pass_than_are_allowed_and_none_is_lost(waits: list[tuple[float, bool]]) -> None:
    limiter = Limiter(burst=5, every_s=30.0, tokens=5.0)
    now_s, passed, told, forced = 0.0, 0, 0, 0
    for wait_s, must in waits:
        now_s += wait_s
        before = limiter.suppressed
        limiter, passes = limiter.offer(now_s, must=must)
        passed += passes
        forced += must
        told += before if passes else 0
    assert passed + told + limiter.suppressed == len(waits)
    assert passed - forced <= 5 + now_s / 30.0 + 1e-6
