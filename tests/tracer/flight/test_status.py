"""What recorders of torch 2.6 to 2.13 say at a glance, in the forms of gloo and NCCL, and any broken one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.flight.status import MOST_GROUPS, parse_names, parse_status
from robust_run.tracer.flight.types import GroupClock, GroupName


def status(enqueued: object, completed: object, started: object = "-1") -> dict[str, object]:
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": started,
        "last_completed_collective": completed,
    }


#: `pg_status` and what stands beside it, version by version: the fields that differ.
VERSIONS: dict[str, dict[str, Any]] = {
    # 2.6, 2.7: NCCL's recorder alone, which calls the library's version `nccl_version`
    "2.6": {"version": "2.5", "nccl_version": "2.21.5", "pg_config": {"0": {"desc": "", "name": "0", "ranks": "[0, 1]"}}},
    # 2.8, 2.9: one recorder for several libraries
    "2.8": {"version": "2.7", "comm_lib_version": "2.27.3", "pg_config": {}},
    "2.10": {"version": "2.10", "comm_lib_version": "2.27.5", "nccl_comm_state": {}, "pg_config": {}},
    "2.13": {"version": "2.10", "comm_lib_version": "2.29.7", "nccl_comm_state": {"a": {"b": "c"}}, "pg_config": {}},
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_how_far_a_rank_is_in_each_group_is_read_of_every_version(version: str) -> None:
    dump = VERSIONS[version] | {"pg_status": {"0": status("42", "40", "41"), "3": status("7", "7")}}
    assert parse_status(json.dumps(dump).encode(), on_nccl=True) == (
        GroupClock(pg=0, enqueued=42, started=41, completed=40, on_nccl=True),
        GroupClock(pg=3, enqueued=7, started=-1, completed=7, on_nccl=True),
    )


def test_numbers_may_be_numbers_as_the_pickled_form_has_them() -> None:
    (clock,) = parse_status(json.dumps({"pg_status": {"0": status(2, 1, -1)}}).encode(), on_nccl=False) or ()
    assert (clock.enqueued, clock.completed, clock.is_open) == (2, 1, True)


def test_of_the_pg_config_of_gloo_which_says_nothing_nothing_is_taken() -> None:
    dump = {"pg_config": {"": {"desc": "", "name": "", "ranks": "[]"}}, "pg_status": {}, "version": "2.10"}
    assert parse_status(json.dumps(dump).encode(), on_nccl=False) == ()


def test_of_very_many_groups_the_newest_are_looked_at() -> None:
    dump = {"pg_status": {str(number): status("1", "1") for number in range(500)}}
    found = parse_status(json.dumps(dump).encode(), on_nccl=False) or ()
    assert [clock.pg for clock in found] == list(range(500 - MOST_GROUPS, 500))


def entry(**fields: Any) -> dict[str, Any]:
    return {
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 3,
        "op_id": 3,
        "is_p2p": False,
    } | fields


def names(*entries: dict[str, Any], on_nccl: bool = False) -> tuple[GroupName, ...]:
    return parse_names(json.dumps({"entries": entries}).encode(), on_nccl=on_nccl)


def test_entries_tell_which_number_has_which_name() -> None:
    found = names(entry(), entry(pg_id=1, process_group=["7", "dp_1"]), entry(collective_seq_id="4", op_id="4"))
    assert [(name.pg, name.name, name.has_p2p) for name in found] == [(0, "0", False), (1, "7", False)]


def test_a_group_with_sends_is_marked_by_them_on_nccl_and_by_the_jump_of_numbers_on_gloo() -> None:
    assert names(entry(is_p2p=True), on_nccl=True)[0].has_p2p
    assert names(entry(), entry(collective_seq_id=4, op_id=6))[0].has_p2p
    assert not names(entry(collective_seq_id=4, op_id=6), on_nccl=True)[0].has_p2p  # NCCL counts its own way


JSON = st.recursive(
    st.integers() | st.text() | st.none() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["pg_status", "entries", "0", *status(0, 0), *entry()]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON | st.binary())
def test_garbage_gives_counts_or_none(value: Any) -> None:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    found = parse_status(content, on_nccl=True)
    assert found is None or all(isinstance(clock, GroupClock) and clock.enqueued >= -1 for clock in found)
    assert all(isinstance(name, GroupName) for name in parse_names(content, on_nccl=True))
