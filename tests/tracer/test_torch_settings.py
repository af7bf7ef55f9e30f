"""Which programs set up torch by themselves, before they import it."""

from __future__ import annotations

import pytest

from robust_run.tracer.arm.startup.torch_settings import differ

AT_START = b"PATH=/bin\0TORCH_LOGS=+dynamo\0TORCHELASTIC_RUN_ID=a\0HOME=/root\0ROBUST_STEPS_FILE=x\0"
LEFT_ALONE = {"PATH": "/bin", "TORCH_LOGS": "+dynamo", "TORCHELASTIC_RUN_ID": "a", "HOME": "/root"}
CACHE = "/tmp/torchinductor_me"


@pytest.mark.parametrize(
    ("changes", "sets"),
    [
        ({}, False),
        ({"WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}, False),
        ({"TORCHELASTIC_RUN_ID": "b", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, False),
        ({"TORCHINDUCTOR_CACHE_DIR": CACHE}, False),
        ({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}, False),
        ({"TORCHINDUCTOR_CACHE_DIR": "/scratch/mine"}, True),
        ({"TORCHDYNAMO_DISABLE": "1"}, True),
        ({"TORCH_LOGS": "recompiles"}, True),
        ({"TRITON_CACHE_DIR": "/scratch"}, True),
    ],
)
def test_only_what_torch_reads_and_the_program_has_set_counts(changes: dict[str, str], sets: bool) -> None:
    assert differ(AT_START, {**LEFT_ALONE, **changes}, CACHE) is sets


def test_a_variable_that_the_program_removed_counts() -> None:
    env = {name: value for name, value in LEFT_ALONE.items() if name != "TORCH_LOGS"}
    assert differ(AT_START, env, CACHE)


def test_bytes_that_are_no_text_are_no_trouble() -> None:
    assert not differ(b"A=\xff\xfe\0\0B\0", {"A": "\udcff\udcfe"}, "")
