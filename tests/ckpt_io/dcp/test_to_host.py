"""Copies into memory of the CPU, from GPUs that only take notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from robust_run.ckpt_io.dcp.pinning import Pinned
from robust_run.ckpt_io.dcp.to_host import copy_to_host


class Gpus:
    """What is done on them, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @contextmanager
    def beside(self, device: torch.device) -> Iterator[None]:
        self.done.append(f"{device} begins")
        try:
            yield
        finally:
            self.done.append(f"{device} is waited for")

    def tensor(self, name: str, device: str) -> Any:
        return _Tensor(name, torch.device(device), self.done)


class _Tensor:
    def __init__(self, name: str, device: torch.device, done: list[str]) -> None:
        self.name, self.device, self.done = name, device, done

    def resolve_conj(self) -> _Tensor:
        return self

    def resolve_neg(self) -> _Tensor:
        self.done.append(f"{self.name} is itself")
        return self

    def copy_(self, source: _Tensor, non_blocking: bool) -> None:
        assert non_blocking
        self.done.append(f"{source.name} is copied")


def test_each_gpu_is_waited_for_once_after_all_of_its_copies() -> None:
    gpus = Gpus()
    out_of = [gpus.tensor("a", "cuda:0"), gpus.tensor("b", "cuda:1"), gpus.tensor("c", "cuda:0")]
    copy_to_host([gpus.tensor("", "cpu") for _ in out_of], out_of, gpus.beside)
    assert gpus.done == [
        "cuda:0 begins",
        "a is itself",
        "a is copied",
        "c is itself",
        "c is copied",
        "cuda:0 is waited for",
        "cuda:1 begins",
        "b is itself",
        "b is copied",
        "cuda:1 is waited for",
    ]


def test_what_is_on_the_cpu_is_copied_beside_what_is_on_a_gpu() -> None:
    gpus = Gpus()
    target, source = torch.zeros(3), torch.ones(3)
    into: list[Any] = [gpus.tensor("", "cpu"), target]
    copy_to_host(into, [gpus.tensor("a", "cuda:0"), source], gpus.beside)
    assert target.tolist() == [1, 1, 1] and "a is copied" in gpus.done


def test_a_gpu_is_waited_for_when_a_copy_fails() -> None:
    gpus = Gpus()
    bad = gpus.tensor("bad", "cuda:0")
    bad.resolve_conj = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        copy_to_host([gpus.tensor("", "cpu")] * 2, [gpus.tensor("a", "cuda:0"), bad], gpus.beside)
    assert gpus.done[-1] == "cuda:0 is waited for"


def test_an_error_of_page_locking_is_forgotten_or_the_programs_next_kernel_would_raise_it() -> None:
    class Refuses:
        def cudaHostRegister(self, *_: int) -> int:  # noqa: N802 - CUDA's name
            return 2

    forgotten: list[int] = []
    Pinned(1, 4096, Refuses(), lambda: forgotten.append(1)).close()
    assert forgotten == [1]
