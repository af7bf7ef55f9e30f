"""The core's policy is a part of the job's spec: what is stated there arrives, whatever it is, and what was recorded is read."""

from __future__ import annotations

from typing import Any

import msgspec

from robust_run.launcher.core.state import CorePolicy, policy_of
from robust_run.launcher.model.job import JobPolicy, JobSpec, ManyNodes, NodePolicy
from robust_run.launcher.start.options.options import Options

#: The job in the first line of a journal, as little of it as any version wrote.
RECORDED = (
    b'{"argv":["python","train.py"],"script":"train.py","is_python":true,"nproc":2,"run_id":"r","rdzv_id":"r","log_dir":null,'
    b'"max_restarts":5,"restart_grace_s":1.5,"streams":{"redirects":[],"tee":[],"shown":[]}}'
)
RECORDED_MANY = (
    RECORDED[:-1] + b',"many":{"fewest":2,"most":4,"host":"n0","port":29400,"last_call_s":3.0},"diagnose":"always"}'
)


def changed(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a value that is not the default for every field of a policy."""
    others: dict[type, Any] = {int: 7, bool: True, float: 0.25, str: "other", tuple: ("other",), type(None): 0.25}
    return {each.name: others[type(each.default)] for each in msgspec.structs.fields(kind)}


def test_each_field_of_the_spec_that_decides_reaches_the_core() -> None:
    spec = msgspec.json.decode(RECORDED, type=JobSpec)
    many = ManyNodes(host="h", port=1, **changed(NodePolicy))
    policy = policy_of(msgspec.structs.replace(spec, many=many, **changed(JobPolicy)))
    for name, value in (changed(JobPolicy) | changed(NodePolicy)).items():
        assert getattr(policy, name) == value, name
    assert policy.many and policy.job == "r"


def test_what_a_journal_does_not_say_is_as_it_was_when_it_was_written() -> None:
    policy = policy_of(msgspec.json.decode(RECORDED, type=JobSpec))
    expected = CorePolicy(
        max_restarts=5,
        restart_grace_s=1.5,
        progress_after_s=600.0,
        shutdown_timeout_s=30.0,
        on_hang="auto",
        hang_after_s=5.0,
        on_slow="report",
        diagnose="auto",
        no_replay="the job has one node",
        job="r",
    )
    assert policy == expected
    policy = policy_of(msgspec.json.decode(RECORDED_MANY, type=JobSpec))
    assert policy == msgspec.structs.replace(
        expected, fewest=2, most=4, join_timeout_s=600.0, last_call_s=3.0, many=True, diagnose="always"
    )


def test_the_record_of_a_job_is_flat_so_that_other_versions_read_it() -> None:
    spec = msgspec.json.decode(RECORDED_MANY, type=JobSpec)
    recorded = msgspec.to_builtins(spec)
    assert set(JobPolicy.__struct_fields__) <= set(recorded) and set(NodePolicy.__struct_fields__) <= set(
        recorded["many"]
    )
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_the_table_of_options_has_the_defaults_of_the_spec() -> None:
    options = Options(training_script="train.py")
    spec = msgspec.json.decode(RECORDED, type=JobSpec)
    assert (options.on_hang, options.on_slow, options.diagnose) == (spec.on_hang, spec.on_slow, spec.diagnose)
    assert options.max_restarts == JobPolicy().max_restarts and options.restart_grace == JobPolicy().restart_grace_s
