"""How sources are dealt to the processes that compile them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from robust_run.snapshot.capture import bytecode
from robust_run.snapshot.rules.types import Root

SIZES = st.lists(st.integers(0, 1000), max_size=30)


@given(SIZES, st.integers(1, 5))
def test_every_source_is_compiled_once_and_no_process_has_much_more_than_another(
    sizes: list[int], processes: int
) -> None:
    found = bytecode.shares(((str(number), size) for number, size in enumerate(sizes)), processes)
    assert sorted(int(path) for part in found for path in part) == list(range(len(sizes)))
    loads = [sum(sizes[int(path)] for path in part) for part in found]
    assert len(loads) <= processes
    assert not loads or len(loads) < processes or max(loads) - min(loads) <= max(sizes)


def test_what_programs_import_is_compiled_for_where_it_will_be_and_tests_are_not(tmp_path: Path) -> None:
    stage = tmp_path / "work/stage"
    package = stage / "r0/package"
    for name in ("__init__.py", "module.py", "tests/test_it.py", "broken.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("def f(:" if name == "broken.py" else "x = 1\n")
    bytecode.compile_all(str(stage), [Root(path="/there", folder="0")], [sys.executable], dict(os.environ))
    made = sorted(str(path.relative_to(package)) for path in package.rglob("*.pyc"))
    compiled = [importlib.util.cache_from_source(name) for name in ("__init__.py", "module.py")]
    assert made == sorted(compiled)
    assert b"/there/package/module.py" in (package / compiled[1]).read_bytes()
