"""A forked worker is what `python -u ...` is: all it can see of itself, and how it ends."""

from __future__ import annotations

import functools
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import Ended, Forker, environment, run_plain, warm_process

PROBE = Path(__file__).with_name("probe.py")

FORMS = {
    "script": ("probe.py",),
    "script by path": ("./programs/../programs/probe.py",),
    "module": ("-m", "programs.probe"),
    "package": ("-m", "programs.package"),
    "folder": ("folder",),
    "zip": ("archive.zip",),
    "code": ("-c", "import programs.probe; programs.probe.main()"),
    "dashes": ("--", "-dash.py"),
}


@pytest.fixture(scope="module")
def light_forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    """A warm process with what torch imports of Python itself, for what torch has no part in: each end with torch takes long."""
    modules = (
        "multiprocessing.connection",
        "concurrent.futures",
        "logging",
        "ctypes",
        "threading",
        "atexit",
        "inspect",
    )
    with warm_process(tmp_path_factory.mktemp("light"), modules=modules, with_torch=False) as forker:
        yield forker


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the probe in every form that Python can run."""
    for name in ("probe.py", "-dash.py", "programs/probe.py", "programs/package/__main__.py", "folder/__main__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROBE, tmp_path / name)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(PROBE, "__main__.py")
    return tmp_path


def differences(plain: dict[str, Any], forked: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that differ. More modules are what warm is about: none may be missing."""
    found = {name: (plain[name], forked[name]) for name in plain if plain[name] != forked.get(name)}
    found["modules"] = set(plain["modules"]) - set(forked["modules"])
    return {name: values for name, values in found.items() if values}


def look(forker: Forker, place: Path, argv: tuple[str, ...], env: dict[str, str]) -> list[dict[str, Any]]:
    """Return what the probe sees in a plain and in a forked worker."""
    seen = []
    for run in (run_plain, forker.run):
        ended = run((*argv, "facts"), place, env)
        assert ended.code == 0, ended
        seen.append(json.loads((place / "facts").read_text()))
        (place / "facts").unlink()
    return seen


def test_a_long_command_line_is_shown_in_full(forker: Forker, place: Path) -> None:
    plain, forked = look(forker, place, ("probe.py", *["x" * 1000] * 20), environment(ROBUST_LONG="y" * 20_000))
    assert differences(plain, forked) == {}


@pytest.mark.parametrize("form", FORMS)
def test_all_it_sees_of_itself_is_the_same(forker: Forker, light_forker: Forker, place: Path, form: str) -> None:
    """With torch as a script and as a module; what other forms there are is Python's business."""
    chosen = forker if form in {"script", "module"} else light_forker
    plain, forked = look(chosen, place, (*FORMS[form], "--lr", "1"), environment(RANK="1", MASTER_PORT="29500"))
    assert differences(plain, forked) == {}
    assert plain.keys() == forked.keys()


def test_all_it_sees_after_importing_torch_is_the_same(forker: Forker, place: Path) -> None:
    plain, forked = look(forker, place, ("probe.py",), environment(ROBUST_PROBE_TORCH="1"))
    # OpenBLAS's own fork handler ended its idle threads; they come back when they are needed.
    assert forked.pop("tasks") == 1
    assert plain.pop("tasks") >= 1
    assert differences(plain, forked) == {}


@pytest.mark.parametrize("kind", ["terminal", "file"])
def test_its_streams_are_the_same_on_another_kind_of_file(forker: Forker, place: Path, kind: str) -> None:
    argv, env, seen = ("probe.py", "facts"), environment(), []
    for forked in (False, True):
        if kind == "terminal":
            other, stream = pty.openpty()
        else:
            other, stream = os.open(PROBE, os.O_RDONLY), os.open(place / "log", os.O_RDWR | os.O_CREAT)
        if forked:
            forker.start(argv, place, env, stream, stream, stream)
            code = forker.wait()
        else:
            command = [sys.executable, "-u", *argv]
            code = subprocess.call(
                command, cwd=place, env=env, stdin=stream, stdout=stream, stderr=stream, start_new_session=True
            )
        os.close(other)
        os.close(stream)
        assert code == 0
        seen.append(json.loads((place / "facts").read_text()))
    plain, forked_facts = seen
    for name in ("stdin", "stdout", "stderr", "std", "descriptors", "terminal"):
        assert plain[name] == forked_facts[name], name
    assert plain["stdout"]["isatty"] == str(kind == "terminal")


ENDINGS = {
    "nothing": "print('hello')",
    "status": "import sys; sys.exit(3)",
    "large status": "import sys; sys.exit(256 + 7)",
    "text": "import sys; sys.exit('no data')",
    "tuple": "import sys; sys.exit((1, 2))",
    "none": "import sys; sys.exit(None)",
    "exception": "def f():\n    raise ValueError('wrong')\nf()",
    "chained": """
        def f():
            try:
                1 / 0
            except ZeroDivisionError as error:
                raise ValueError('wrong') from error
        try:
            f()
        except ValueError:
            {}['x']
    """,
    "group": """
        import sys
        if sys.version_info < (3, 11): raise ValueError
        raise eval('ExceptionGroup')('two', [OSError(1), KeyError()])
    """,
    "notes": "e = ValueError('wrong')\nif hasattr(e, 'add_note'): e.add_note('of rank 3')\nraise e",
    "system exit in a cause": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise SystemExit(4)",
    "syntax error": "print(1)\ndef f(:\n    pass",
    "null byte": "print(1)\n\0",
    "deep recursion": "def f(): f()\nimport sys; sys.setrecursionlimit(50); f()",
    "interrupt": "raise KeyboardInterrupt",
    "interrupted": "import signal; signal.raise_signal(signal.SIGINT)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "leaves at once": "import os; print('x'); os._exit(5)",
    "broken pipe": "import os, sys; r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "exception in a thread": """
        import threading
        t = threading.Thread(target=lambda: 1 / 0)
        t.start(); t.join(); print('main goes on')
    """,
    "exit in a thread": """
        import sys, threading
        t = threading.Thread(target=sys.exit, args=(3,))
        t.start(); t.join(); print('main goes on')
    """,
    "thread outlives main": """
        import threading, time, atexit
        atexit.register(print, 'atexit')
        def f():
            threading.main_thread().join(); print('thread ends', threading.current_thread().name)
        threading.Thread(target=f).start(); print('main ends')
    """,
    "atexit order": """
        import atexit, sys
        for n in range(3): atexit.register(print, 'atexit', n)
        class C:
            def __del__(self): print('deleted')
        c = C()
        sys.stdout.write('no newline')
        sys.exit(6)
    """,
    "atexit fails": "import atexit; atexit.register(lambda: 1 / 0); print('main')",
    "unraisable at exit": """
        class C:
            def __del__(self): raise ValueError('in del')
        c = C()
        d = C(); del d
    """,
    "excepthook of its own": "import sys; sys.excepthook = lambda *a: print('hook', a[0], a[2].tb_next); 1 / 0",
    "excepthook fails": "import sys\ndef h(*a): raise OSError('hook')\nsys.excepthook = h\n1 / 0",
    "prints its stack": """
        import inspect, sys, traceback, warnings
        def f():
            traceback.print_stack(); print(len(inspect.stack()), sys._getframe(1).f_back)
            warnings.warn('level 1'); warnings.warn('level 3', stacklevel=3); warnings.warn('level 9', stacklevel=9)
        f()
    """,
    "fault handler": "import faulthandler, sys; faulthandler.dump_traceback(); faulthandler.enable(); import os; os.abort()",
    "its own module": "import __main__, sys; print(__main__ is sys.modules['__main__'], __main__.__dict__ is globals())",
    "pickles itself": """
        import pickle
        class C: pass
        print(type(pickle.loads(pickle.dumps(C()))) is C, C.__module__)
    """,
    "annotations": "x: int = 1\nprint(__annotations__ if '__annotations__' in globals() else 'lazy')",
    "future": "from __future__ import annotations\nx: Missing\nprint('ok')",
    "coding": "# -*- coding: latin-1 -*-\nprint(ascii('\\xe9'))",
    "closes its streams": "import sys; sys.stdout.close(); sys.exit(2)",
}


@pytest.mark.parametrize("form", ["script", "module"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_it_ends_in_the_same_way(forker: Forker, light_forker: Forker, tmp_path: Path, ending: str, form: str) -> None:
    """Scripts with torch, modules without: how it was started and what was imported are not known of each other."""
    (tmp_path / "train.py").write_text(textwrap.dedent(ENDINGS[ending]))
    argv, chosen = (("train.py",), forker) if form == "script" else (("-m", "train"), light_forker)
    plain, forked = (
        run_plain(argv, tmp_path, environment()),
        chosen.run(argv, tmp_path, environment(), looks_for_garbage=form == "module"),
    )
    assert without_addresses(forked) == without_addresses(plain)


LEFT_OPEN = {
    "program": "file = open('left', 'w')\nfile.write('all of it')\ndef use(): return file",
    "imported before": """
        import inspect
        inspect.file = open('left', 'w')
        inspect.file.write('all of it')
    """,
    "registered": """
        import atexit, inspect
        def late():
            inspect.file = open('left', 'w')
            inspect.file.write('all of it')
        atexit.register(late)
    """,
}


@pytest.mark.parametrize("form", ["script", "module"])
@pytest.mark.parametrize("where", LEFT_OPEN)
def test_a_file_that_nobody_closed_is_written_when_it_ends(
    forker: Forker, light_forker: Forker, tmp_path: Path, where: str, form: str
) -> None:
    """By Python's last look for garbage, which must find what was imported before the fork as well."""
    (tmp_path / "train.py").write_text(textwrap.dedent(LEFT_OPEN[where]))
    argv, chosen = (("train.py",), forker) if form == "script" else (("-m", "train"), light_forker)
    for run in (run_plain, functools.partial(chosen.run, looks_for_garbage=True)):
        assert run(argv, tmp_path, environment()) == Ended(0, "", "")
        assert (tmp_path / "left").read_text() == "all of it"
        (tmp_path / "left").unlink()


def without_addresses(ended: Ended) -> Ended:
    """Return the ending without addresses, and without the fault handler's list of the C extensions that are loaded."""
    out, err = (re.sub("0x[0-9a-f]+", "0x", text) for text in ended[1:])
    return Ended(ended.code, out, re.sub(r"\n*Extension modules: .*", "", err).rstrip())


@pytest.mark.parametrize(
    "argv",
    [
        ("missing.py",),
        ("-m", "missing"),
        ("-m", "package"),
        ("-m", "os.path.x"),
        ("empty",),
        ("-c", "1 / 0"),
        ("-c", "def f(:"),
        ("binary.py",),
        ("unreadable/x.py",),
    ],
    ids=" ".join,
)
def test_a_program_that_cannot_be_run_is_refused_by_python_itself(
    light_forker: Forker, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "binary.py").write_bytes(b"\x80\x81\xff\n")
    plain = run_plain(argv, tmp_path, environment())
    assert plain.code not in (0, 99)
    assert light_forker.run(argv, tmp_path, environment()) == plain


def test_a_forked_worker_can_be_interrupted_from_outside(forker: Forker, tmp_path: Path) -> None:
    # In short sleeps: Python 3.14 does not see a signal that comes between a call with a keyword and one that waits.
    (tmp_path / "train.py").write_text("import time\nprint(flush=True)\nwhile True: time.sleep(0.01)\n")
    nothing = os.open(os.devnull, os.O_RDWR)
    reading, writing = os.pipe()
    pid = forker.start(("train.py",), tmp_path, environment(), nothing, writing, nothing)
    os.close(writing)
    assert os.read(reading, 1) == b"\n"
    os.kill(pid, signal.SIGINT)
    assert forker.wait() == -signal.SIGINT
    os.close(reading)
    os.close(nothing)
