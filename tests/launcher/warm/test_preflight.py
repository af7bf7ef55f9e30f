"""What makes a process unfit to be forked is seen, without making it so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import ctypes, sys
from robust_run.forking import preflight
if sys.argv[1:]:
    ctypes.CDLL(sys.argv[1])
print(preflight.cuda_context())
"""


def look(*arguments: str) -> str:
    result = subprocess.run([sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def driver(folder: Path, answer: int) -> str:
    """Make a stand-in for the CUDA driver's library that gives this answer, and return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler to make a stand-in for libcuda.so.1")
    source = folder / "cuda.c"
    source.write_text(f"int cuCtxGetCurrent(void **context) {{ *context = 0; return {answer}; }}\n")
    library = folder / "libcuda.so.1"
    argv = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    subprocess.run(argv, check=True)
    return str(library)


def test_without_a_driver_there_is_no_context() -> None:
    assert look() == ""


def test_a_loaded_driver_that_was_never_initialised_is_no_context(tmp_path: Path) -> None:
    assert look(driver(tmp_path, 3)) == ""


def test_an_initialised_driver_is_seen(tmp_path: Path) -> None:
    assert look(driver(tmp_path, 0)) == "CUDA is initialised"
