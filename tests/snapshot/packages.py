"""Wheels and projects made on the spot, so that no test needs an index: one of each kind that installers know."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

LONG_NAME = "n" * 196 + ".txt"
ODD_NAMES = ("with space.txt", "ünïcödé-文字.txt", "quote'\"$x.txt", "new\nline.txt", "-dash.txt", LONG_NAME)
ODD_DISTRIBUTION = {
    "oddpack/__init__.py": "VALUE = 42\ndef main():\n    import sys\n    print('script of', sys.prefix)\n",
    "nsx/one/__init__.py": "NAME = 'one'\n",
    "zz_oddpack.pth": "import sys; sys.from_pth = 'yes'\n",
    "oddpack-1.0.data/scripts/oddscript": "#!python\nimport oddpack\nprint(oddpack.VALUE)\n",
    "oddpack-1.0.data/data/share/oddpack/data.txt": "data\n",
    **{f"oddpack/data/{name}": f"{name}\n" for name in ODD_NAMES if "\n" not in name},
}
_EXTENSION = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, 0}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&module); }
"""
_BACKEND = """
import os, zipfile
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "inplace-0.1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("__editable__inplace.pth", os.path.join(os.getcwd(), "src"))
        wheel.writestr("inplace-0.1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: inplace\\nVersion: 0.1\\n")
        wheel.writestr("inplace-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("inplace-0.1.dist-info/RECORD", "")
    return name
def build_wheel(*arguments, **keywords):
    raise NotImplementedError
"""


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, str | bytes],
    *,
    tag: str = "py3-none-any",
    scripts: str = "",
) -> Path:
    """Write a wheel. `scripts`: lines of `[console_scripts]`."""
    info = f"{name}-{version}.dist-info"
    everything: dict[str, str | bytes] = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if scripts:
        everything[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n"
    record = []
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, content in everything.items():
            data = content.encode() if isinstance(content, str) else content
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            quoted = '"' + place.replace('"', '""') + '"'
            record.append(f"{quoted},sha256={digest},{len(data)}")
            entry = zipfile.ZipInfo(place, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if "/scripts/" in place else 0o100644) << 16
            wheel.writestr(entry, data)
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return path


def make_index(folder: Path) -> Path:
    """Fill a folder for `pip --find-links`, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    make_wheel(folder, "oddpack", "1.0", dict(ODD_DISTRIBUTION), scripts="odd = oddpack:main")
    make_wheel(folder, "othernsx", "1.0", {"nsx/two/__init__.py": "NAME = 'two'\n"})
    make_wheel(
        folder, "upgraded", "1.0", {"upgraded/__init__.py": "V = 1\n", "upgraded/old.py": "", "gone/__init__.py": ""}
    )
    make_wheel(folder, "upgraded", "2.0", {"upgraded/__init__.py": "V = 2\n", "upgraded/new.py": ""})
    return folder


def make_compiled_wheel(folder: Path) -> Path | None:
    """Compile a small extension into a wheel; None without a compiler or Python's headers."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    include = sysconfig.get_path("include")
    if compiler is None or not (Path(include) / "Python.h").exists():
        return None
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    source, built = folder / "compiled.c", folder / f"compiled{suffix}"
    source.write_text(_EXTENSION)
    argv = [compiler, "-shared", "-fPIC", "-O1", f"-I{include}", str(source), "-o", str(built)]
    subprocess.run(argv, check=True, timeout=120)
    return make_wheel(folder, "compiled", "1.0", {built.name: built.read_bytes()})


def make_project(folder: Path) -> Path:
    """Make a project that can be installed in place without any build tool."""
    (folder / "src/inplace").mkdir(parents=True)
    (folder / "src/inplace/__init__.py").write_text("WHERE = __file__\n")
    (folder / "backend.py").write_text(_BACKEND)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "inplace"\nversion = "0.1"\n'
    )
    return folder
