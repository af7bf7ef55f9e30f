"""What a warm process imports once a program is seen to use it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.agent.warm.known import batches, to_preload, worth_preloading

IMPORTED = [
    "sys",
    "numpy",
    "torch",
    "torch.nn",
    "my_own",
    "transformers.models",
    "torch._dynamo",
    "torch._dynamo.config",
]


def test_what_torch_imports_late_is_always_worth_it() -> None:
    assert worth_preloading(IMPORTED, everything=False) == ("torch._dynamo",)


def test_other_packages_are_for_those_who_ask_for_auto() -> None:
    assert worth_preloading(IMPORTED, everything=True) == ("numpy", "transformers.models", "torch._dynamo")


def test_a_program_without_an_optimizer_has_nothing_imported_for_it() -> None:
    assert worth_preloading(["torch", "torch.distributed"], everything=False) == ()


def test_a_list_counts_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "modules"
    assert to_preload(str(path), everything=False) is None
    path.write_text("torch\ntorch._dynamo")
    assert to_preload(str(path), everything=False) is None
    path.write_text("torch\ntorch._dynamo\n.\n")
    assert to_preload(str(path), everything=False) == ("torch._dynamo",)
    path.write_text("torch\n.\n")
    assert to_preload(str(path), everything=False) == ()


@given(st.binary(max_size=200))
def test_whatever_a_worker_wrote_only_names_of_modules_are_taken(content: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        chosen = to_preload(file.name, everything=True)
    assert chosen is None or all(part.isidentifier() for name in chosen for part in name.split("."))


def test_what_torch_imports_late_is_judged_by_itself() -> None:
    names = ("torch", "numpy", "torch.distributed", "torch._dynamo", "numpy.random")
    assert batches(names) == [("torch", "torch.distributed"), ("numpy", "numpy.random"), ("torch._dynamo",)]
