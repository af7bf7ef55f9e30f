"""The table of options says the same as torchrun's own parser, and the same as `Options`."""

from __future__ import annotations

import argparse

import msgspec
import pytest
from torch.distributed import argparse_util
from torch.distributed.run import get_args_parser

from robust_run.launcher.start.options.options import (
    GROUPS,
    HELP_OPTIONS,
    OPTIONS,
    OURS,
    RESUMABLE,
    OptionDescription,
    Options,
)

TORCHRUN_S = [option for option in OPTIONS if option.group not in OURS]
ACTIONS = {action.dest: action for action in get_args_parser()._actions if action.option_strings}


def by_name(option: OptionDescription) -> str:
    return option.name


def test_every_field_of_options_has_a_description_and_the_other_way_round() -> None:
    fields = {field.name for field in msgspec.structs.fields(Options)} - {
        "training_script",
        "training_script_args",
        "given",
    }
    assert sorted(option.field for option in OPTIONS) == sorted(fields)


def test_torchrun_has_no_option_that_is_missing_here() -> None:
    assert {option.field for option in TORCHRUN_S} == set(ACTIONS) - {"help"}


def test_names_and_letters_are_given_once() -> None:
    everything = (*OPTIONS, *HELP_OPTIONS)
    assert len({option.name for option in everything}) == len(everything)
    letters = [option.short for option in everything if option.short]
    assert sorted(letters) == sorted(set(letters))


def test_every_option_is_on_the_help_page() -> None:
    assert {option.group for option in (*OPTIONS, *HELP_OPTIONS)} == set(GROUPS)


@pytest.mark.parametrize("option", TORCHRUN_S, ids=by_name)
def test_it_is_spelled_as_in_torchrun(option: OptionDescription) -> None:
    names = {f"--{option.name}", f"--{option.field}"} | ({f"-{option.short}"} if option.short else set())
    assert set(ACTIONS[option.field].option_strings) == names


@pytest.mark.parametrize("option", TORCHRUN_S, ids=by_name)
def test_it_takes_a_value_where_torchrun_s_does(option: OptionDescription) -> None:
    assert option.takes_value == (ACTIONS[option.field].nargs != 0)


@pytest.mark.parametrize("option", TORCHRUN_S, ids=by_name)
def test_it_takes_what_torchrun_s_takes(option: OptionDescription) -> None:
    action = ACTIONS[option.field]
    assert option.choices == tuple(action.choices or ())
    expected = {int: "whole", float: "decimal"}.get(action.type, "text") if option.takes_value else "flag"  # type: ignore[call-overload]
    assert option.kind == expected


@pytest.mark.parametrize("option", TORCHRUN_S, ids=by_name)
def test_its_default_is_torchrun_s_but_for_restarts(option: OptionDescription) -> None:
    if option.name == "max-restarts":
        assert (option.default, ACTIONS[option.field].default) == (3, 0)
    elif option.name.startswith("duplicate-"):
        assert (option.default, ACTIONS[option.field].default) == ("", [])
    else:
        assert option.default == ACTIONS[option.field].default


@pytest.mark.parametrize("option", TORCHRUN_S, ids=by_name)
def test_it_reads_the_variable_that_torchrun_reads(option: OptionDescription) -> None:
    action: argparse.Action = ACTIONS[option.field]
    reads = isinstance(action, (argparse_util.env, argparse_util.check_env))
    assert option.env == (f"PET_{option.field.upper()}" if reads else None)


def test_our_own_options_read_variables_of_ours() -> None:
    ours = {option.name: option.env for option in OPTIONS if option.group in OURS}
    assert ours == {
        "run-id": "ROBUST_RUN_ID",
        "no-sensors": "ROBUST_NO_SENSORS",
        "health-rules": "ROBUST_HEALTH_RULES",
        "metrics-from": "ROBUST_METRICS_FROM",
        "restart-grace": "ROBUST_RESTART_GRACE",
        "progress-after": "ROBUST_PROGRESS_AFTER",
        "progress-path": "ROBUST_PROGRESS_PATH",
        "no-warm": "ROBUST_NO_WARM",
        "code": "ROBUST_CODE",
        "probation-steps": "ROBUST_PROBATION_STEPS",
        "preload": "ROBUST_PRELOAD",
        "on-hang": "ROBUST_ON_HANG",
        "hang-after": "ROBUST_HANG_AFTER",
        "on-slow": "ROBUST_ON_SLOW",
        "on-outlier": "ROBUST_ON_OUTLIER",
        "slow-round": "ROBUST_SLOW_ROUND",
        "trace-nccl": "ROBUST_TRACE_NCCL",
        "ckpt-dir": "ROBUST_CKPT_DIR",
        "ckpt-ahead": "ROBUST_CKPT_AHEAD",
        "ckpt-mount": "ROBUST_CKPT_MOUNT",
        "ckpt-memory": None,  # ROBUST_CKPT_MEMORY is where workers find the keeper
        "ckpt-memory-dir": None,  # the variable is what workers are told
        "ckpt-every": "ROBUST_CKPT_EVERY",
        "ckpt-keep": "ROBUST_CKPT_KEEP",
        "ckpt-copies": "ROBUST_CKPT_COPIES",
        "http-port": "ROBUST_HTTP_PORT",
        "http-host": "ROBUST_HTTP_HOST",
        "roles": None,  # launchers of its members would take it for theirs
        "node-label": None,  # as roles
        "resume": None,  # a variable of an old job must not turn a new one into it
        "standby": "ROBUST_STANDBY",
        "wait-for-nodes": "ROBUST_WAIT_FOR_NODES",
        "evict-list": "ROBUST_EVICT_LIST",
        "controller-standby": "ROBUST_CONTROLLER_STANDBY",
        "on-sigterm": "ROBUST_ON_SIGTERM",
        "coordinator": "ROBUST_COORDINATOR",
        "found": None,  # for one start, not for all that a shell begins
        "node-name": "ROBUST_NODE_NAME",
        "prometheus-dir": "ROBUST_PROMETHEUS_DIR",
        "token-file": "ROBUST_TOKEN_FILE",
        "insecure-rendezvous": "ROBUST_INSECURE_RENDEZVOUS",
        "tls-cert": "ROBUST_TLS_CERT",
        "tls-key": "ROBUST_TLS_KEY",
        "tls-ca": "ROBUST_TLS_CA",
        "image": "ROBUST_IMAGE",
        "image-writable": "ROBUST_IMAGE_WRITABLE",
        "bind": None,  # a bind has colons, which part the paths of a variable
        "image-cache": "ROBUST_IMAGE_CACHE",
        "hang-patience": "ROBUST_HANG_PATIENCE",
        "diagnose": "ROBUST_DIAGNOSE",
        "diagnose-checks": "ROBUST_DIAGNOSE_CHECKS",
        "replay": None,
        "replay-unit": "ROBUST_REPLAY_UNIT",
        "max-evict-share": "ROBUST_MAX_EVICT_SHARE",
        "check-reduced": "ROBUST_CHECK_REDUCED",
        "admission-checks": "ROBUST_ADMISSION_CHECKS",
        "record-window": "ROBUST_RECORD_WINDOW",
        "prefetch-env": "ROBUST_PREFETCH_ENV",
        "setup": "ROBUST_SETUP",
        "setup-file": "ROBUST_SETUP_FILE",
        "setup-store": "ROBUST_SETUP_STORE",
        "setup-token-file": "ROBUST_SETUP_TOKEN_FILE",
        "refresh-setup": "ROBUST_REFRESH_SETUP",
        "notify": "ROBUST_NOTIFY",
        "requeue": "ROBUST_REQUEUE",
        "warn-before": "ROBUST_WARN_BEFORE",
        "revive": "ROBUST_REVIVE",
    }


def test_what_may_stand_beside_resume_are_options() -> None:
    assert set(RESUMABLE) < {option.name for option in OPTIONS}
