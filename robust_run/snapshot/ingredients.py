"""Collecting all that decides what set-up commands produce: their words, the bytes of the files they name, and the machine.

Credentials never get in: a token that is renewed must not change the key, nor be read in a manifest.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from robust_run.snapshot.digests import Digests
from robust_run.snapshot.errors import SetupRefused
from robust_run.snapshot.platforms import ImageFacts, SetupFacts
from robust_run.snapshot.rules import key, mentions
from robust_run.snapshot.rules.types import Ingredient, Root

MOST_FILES = 50_000
MOST_BYTES = 8 << 30
_REQUIREMENTS_BYTES = 4 << 20
_DEPTH = 16
#: Of a project: what says how it is built and what it needs. Its code is not copied when it is installed in place.
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in", "requirements.txt")
_SKIPPED_FOLDERS = frozenset(
    ".git .hg .tox .nox .venv __pycache__ .mypy_cache .pytest_cache .ruff_cache .eggs node_modules".split()
)
#: What building a project writes into its own folder: it must not change the key under which the build is known.
_BUILD_OUTPUT = re.compile(
    r"build/(lib|lib\..*|bdist\..*|temp\..*|scripts-.*|(cp|pp)[0-9]+.*|wheel|src\..*)|_skbuild|dist/.*\.(whl|tar\.gz|zip|egg)"
)
#: In folders that say of themselves that they can be made again, such as Cargo's `target` (https://bford.info/cachedir/).
_CACHE_TAG, _CACHE_SIGNATURE = "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55"
#: What compilers and installers look at.
VARIABLES = tuple(
    "TORCH_CUDA_ARCH_LIST CUDA_HOME CUDA_PATH CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS LD_LIBRARY_PATH CMAKE_ARGS NVCC_FLAGS"
    " FORCE_CUDA PYTHONPATH PYTHONNOUSERSITE PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX PIP_CONSTRAINT PIP_PRE"
    " PIP_REQUIRE_HASHES PIP_NO_BINARY PIP_ONLY_BINARY PIP_TARGET PIP_PREFIX PIP_USER UV_INDEX_URL UV_EXTRA_INDEX_URL"
    " UV_DEFAULT_INDEX UV_INDEX UV_FIND_LINKS UV_NO_INDEX UV_CONSTRAINT UV_OVERRIDE UV_PRERELEASE UV_EXCLUDE_NEWER"
    " UV_NO_BINARY UV_PYTHON".split()
)
#: The beginning of the name of an ingredient: what is there already.
INSTALLED = "installed in root "
_DISTRIBUTIONS = (".dist-info", ".egg-info", ".pth", ".egg-link")
_FILE_VARIABLES = frozenset(("PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"))


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """All ingredients, and what follows from them."""

    ingredients: tuple[Ingredient, ...]
    pinned: bool
    """Whether every requirement that was seen allows one version only."""


def collect(
    commands: Sequence[str],
    *,
    cwd: str,
    roots: Sequence[Root],
    facts: SetupFacts | ImageFacts,
    environment: Mapping[str, str],
    variables: Iterable[str] = (),
    cache: str | None = None,
) -> Collected:
    """Return the ingredients of a set-up. `variables`: names of more variables that decide; `cache`: a folder of ours that keeps
    digests of large files.

    What is installed already is looked at here, but for a set-up inside an image: that is what the image's digest says.

    Raises `SetupRefused` for a requirement file that is not there, and beyond a limit.
    """
    if not commands:
        raise SetupRefused("no set-up command is given: use --setup or --setup-file")
    files = _Files(cwd, Digests(cache), facts.on_host if isinstance(facts, ImageFacts) else lambda path: path)
    for number, command in enumerate(commands, 1):
        files.add(key.ingredient(f"command {number:03}", key.blanked(command)))
        files.follow(mentions.in_command(command), cwd, 0)
    for name in sorted({*VARIABLES, *variables}):
        value = environment.get(name)
        if value is not None:
            files.add(key.ingredient(f"variable {name}", key.blanked(value)))
            if name in _FILE_VARIABLES:
                files.follow([mentions.Mention("requirements", path) for path in value.split()], cwd, 0)
    for root in roots:
        files.add(key.ingredient(f"root {root.folder}", root.path))
        if isinstance(facts, SetupFacts):
            files.add(installed(root))
    for name, value in facts.named():
        files.add(key.ingredient(name, value))
    files.digests.save()
    return Collected(ingredients=tuple(files.found.values()), pinned=files.pinned)


class _Files:
    """Follows mentions to files; each is read once."""

    def __init__(self, cwd: str, digests: Digests, on_host: Callable[[str], str | None]) -> None:
        """`on_host`: where this machine has what the commands find at a path; None: it has it not, and it decides nothing."""
        self.digests = digests
        self._on_host = on_host
        self.found: dict[str, Ingredient] = {}
        self.pinned = True
        self._cwd = cwd
        self._count = self._bytes = 0

    def add(self, item: Ingredient) -> None:
        self.found.setdefault(item.name, item)

    def follow(self, named: Iterable[mentions.Mention], folder: str, depth: int) -> None:
        for mention in named:
            if mention.role == "requirement":
                self.pinned = self.pinned and mentions.is_pinned(mention.text)
            place = mentions.local_path(mention.text)
            if place is None or mention.role == "index":
                continue
            path = self._on_host(os.path.normpath(os.path.join(folder, os.path.expanduser(place))))
            if path is None:
                continue
            if mention.role == "requirements":
                self._requirements(path, depth)
            elif os.path.isdir(path) and mention.role in ("editable", "file", "requirement", "links"):
                self._folder(path, mention)
            elif os.path.isfile(path):
                self._file(path)

    def _requirements(self, path: str, depth: int) -> None:
        name = f"file {self._shown(path)}"
        if name in self.found:
            return
        if depth > _DEPTH:
            raise SetupRefused(f"{path}: requirement files are nested deeper than {_DEPTH}")
        try:
            if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):  # it would be waited for
                raise SetupRefused(f"{path}: it is a pipe, and would be read more than once; write it to a file")
            with open(path, "rb") as file:
                data = file.read(_REQUIREMENTS_BYTES + 1)
        except OSError as error:
            raise SetupRefused(f"{path}: {error.strerror}: the set-up command names it; give its path") from error
        if len(data) > _REQUIREMENTS_BYTES:
            raise SetupRefused(f"{path}: more than {_REQUIREMENTS_BYTES} bytes: is it a requirement file?")
        self.add(key.ingredient(name, data, f"{len(data)} bytes"))
        if not path.endswith(".toml"):
            self.follow(mentions.in_requirements(data.decode("utf-8", "replace")), os.path.dirname(path), depth + 1)

    def _file(self, path: str) -> None:
        digest, size_bytes = self._digest(path)
        self.add(Ingredient(name=f"file {self._shown(path)}", digest=digest, shown=f"{size_bytes} bytes"))

    def _folder(self, path: str, mention: mentions.Mention) -> None:
        """A project by its files, all of them if it is copied; a folder of links by its packages."""
        is_project = any(os.path.isfile(os.path.join(path, name)) for name in _PROJECT_FILES[:3])
        if mention.role == "links":
            inside = sorted(item.path for item in list(os.scandir(path)) if item.is_file())
        elif mention.role == "editable":
            self.add(key.ingredient(f"editable {self._shown(path)}", path))  # its path is written into site-packages
            inside = [place for name in _PROJECT_FILES if os.path.isfile(place := os.path.join(path, name))]
        elif is_project:
            inside = sorted(_walk(path))
        else:
            return
        whole = hashlib.sha256()
        for place in inside:
            digest, _ = self._digest(place)
            whole.update(f"{digest} ".encode() + os.fsencode(os.path.relpath(place, path)) + b"\0")
        shown = f"{len(inside)} files"
        self.add(Ingredient(name=f"folder {self._shown(path)}", digest=whole.hexdigest(), shown=shown))

    def _digest(self, path: str) -> tuple[str, int]:
        self._count += 1
        if self._count > MOST_FILES:
            raise SetupRefused(f"{path}: the set-up names more than {MOST_FILES} files: name fewer, or a wheel")
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise SetupRefused(f"{path}: it is no regular file")
                known = self.digests.find(path, status)
                if known is not None:
                    return known, status.st_size
                whole = hashlib.sha256()
                size_bytes = 0
                while piece := file.read(1 << 20):
                    whole.update(piece)
                    size_bytes += len(piece)
                    self._bytes += len(piece)
                    if self._bytes > MOST_BYTES:
                        raise SetupRefused(f"{path}: the files of the set-up have more than {MOST_BYTES} bytes")
        except OSError as error:
            raise SetupRefused(f"{path}: {error.strerror}: the set-up command names it") from error
        self.digests.note(path, status, whole.hexdigest())
        return whole.hexdigest(), size_bytes

    def _shown(self, path: str) -> str:
        relative = os.path.relpath(path, self._cwd)
        return path if relative.startswith("..") else relative


def _walk(path: str) -> Iterable[str]:
    """Yield the files of a project that are its sources, as far as can be told: what a build of it writes there is left out."""
    for folder, folders, names in os.walk(path):
        place = os.path.relpath(folder, path)
        at = "" if place == os.curdir else f"{place}/"
        folders[:] = sorted(name for name in folders if not _is_output(folder, at, name))
        for name in names:
            found = os.path.join(folder, name)
            if not name.endswith(".pyc") and not _is_built(folder, at + name) and os.path.isfile(found):
                yield found


def _is_output(folder: str, at: str, name: str) -> bool:
    """Whether a folder of a project is what tools wrote. `at`: where it is in the project, with a slash; "": at its top."""
    if name in _SKIPPED_FOLDERS or name.endswith((".egg-info", ".dist-info")) or _is_built(folder, at + name):
        return True
    try:
        with open(os.path.join(folder, name, _CACHE_TAG), "rb") as file:
            return file.read(len(_CACHE_SIGNATURE)) == _CACHE_SIGNATURE
    except OSError:
        return False


def _is_built(folder: str, place: str) -> bool:
    """Whether a name is one that builds use. A package may be called `build`, too."""
    return _BUILD_OUTPUT.fullmatch(place) is not None and not os.path.exists(os.path.join(folder, "__init__.py"))


def installed(root: Root) -> Ingredient:
    """Return what is in a root, such as before the set-up: each distribution by name, version and the digest of its RECORD."""
    lines: list[str] = []
    for folder in _site_folders(root.path):
        names = sorted(name for name in os.listdir(folder) if name.endswith(_DISTRIBUTIONS))
        place = os.path.relpath(folder, root.path)
        lines += [f"{place}/{name} {_record_digest(os.path.join(folder, name))}" for name in names]
    text = "\n".join(lines)
    return key.ingredient(f"{INSTALLED}{root.folder}", text, f"{len(lines)} distributions")


def _site_folders(path: str) -> list[str]:
    """Return the site-packages and dist-packages below a prefix, and the folder itself if it is one."""
    import glob

    if os.path.basename(path) in ("site-packages", "dist-packages"):
        return [path]
    below = [os.path.join(glob.escape(path), lib, "python*", "*-packages") for lib in ("lib*", "local/lib*")]
    found = {os.path.realpath(place) for pattern in below for place in glob.glob(pattern) if os.path.isdir(place)}
    return sorted(found)


def _record_digest(path: str) -> str:
    for name in ("RECORD", "METADATA", "PKG-INFO", ""):
        try:
            with open(os.path.join(path, name) if name else path, "rb") as file:
                return hashlib.sha256(file.read(64 << 20)).hexdigest()[:32]
        except OSError:
            continue
    return "-"
