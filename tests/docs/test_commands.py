"""Every command that the guide shows: those that can be are run, the others say why not, and all of them are spelt right."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import pytest
import warm_ground
from generated_docs import RUN_FILES
from jobs import wait_for
from shown_commands import Block, blocks, commands, pages, recipes

from robust_run.launcher.start.options.options import HELP_OPTIONS, OPTIONS
from robust_run.robust_cli import robust

#: Longer than any block of the guide takes on a busy machine.
LIMIT_S = 300.0
MARK = "DOCS_TEST"
#: Where pages have checkpoints: a test has them in its own folder.
NODE_FOLDERS = re.compile(r"(?<![\w.])/(?:ssd[01]|mnt)\b")
RUNNABLE = [page for page in pages() if any(block.what == "run" for block in blocks(page))]
#: The first job of a page on starts begins from nothing; all others from a warm process.
OF_STARTS = ("start.md", "startup.md")
SKIPPED = [block for page in pages() for block in blocks(page) if block.what == "skip"]


class Desk:
    """A folder in which somebody follows a page."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.next_is_cold = False
        """Whether the next job starts from nothing."""
        self.mark = f"d{uuid.uuid4().hex[:12]}"
        commands = folder / ".bin"
        commands.mkdir()
        for name, module in (("robust-run", "robust_run.cli"), ("robust", "robust_run.robust_cli")):
            program = (
                f"#!{sys.executable}\nimport sys\nfrom {module} import main\nsys.argv[0] = {name!r}\nsys.exit(main())\n"
            )
            (commands / name).write_text(program)
            (commands / name).chmod(0o755)
        (commands / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (commands / "python").chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
            "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            **variables,
            MARK: self.mark,
        }

    def start(self, block: Block) -> subprocess.Popen[str]:
        """Type a block into a shell that ends at the first failure."""
        environment = dict(self.environment)
        if self.next_is_cold and "robust-run" in block.text:
            environment["ROBUST_WARM_DAEMON"] = "off"
            self.next_is_cold = False
        return subprocess.Popen(
            [
                "bash",
                "-e",
                "-o",
                "pipefail",
                "-c",
                NODE_FOLDERS.sub(lambda found: f"{self.folder}{found[0]}", block.text),
            ],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, block: Block) -> None:
        """Type it and look at what it says."""
        process = self.start(block)
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, f"{block.where} ended with {process.returncode}:\n{said}"
        for wanted in block.values("says"):
            assert wanted in said, f"{block.where} did not say {wanted!r}:\n{said}"

    @contextmanager
    def meanwhile(self, block: Block, is_stopped: bool) -> Iterator[None]:
        """Have it run in the background; it, too, must not fail before the page is done. `is_stopped`: the page itself ends it.

        It ends in good order: one that is killed may leave a file half written.
        """
        (pattern,) = block.values("until")
        with (self.folder / ".background.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {block.text}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:

            def is_there() -> bool:
                assert process.poll() is None, (self.folder / ".background.log").read_text()
                return any(self.folder.glob(pattern))

            wait_for(is_there, f"{pattern}, for {block.where}")
            yield
            if not is_stopped:
                process.terminate()
            process.wait(60)
        finally:
            self.sweep()
            process.wait()

    def sweep(self) -> None:
        """End whatever was started here."""
        for pid in self.left():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        """Return the processes that carry the mark; a zombie has no environment."""
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and f"{MARK}={self.mark}".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
        return found


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What all who follow pages have in their environment: a home, and a warm process."""
    home = {**warm_ground.SEVERAL, "HOME": str(tmp_path_factory.mktemp("home"))}
    if not warm_ground.WANTED:
        yield home
        return
    with warm_ground.started(home, LIMIT_S) as folder:
        yield {**home, "ROBUST_WARM_FOLDER": str(folder), "ROBUST_WARM_DAEMON": warm_ground.PATIENT_S}


@pytest.fixture
def desk(tmp_path: Path, variables: dict[str, str]) -> Iterator[Desk]:
    here = Desk(tmp_path, variables)
    yield here
    here.sweep()
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if (place := line.split()[1]).startswith(f"{tmp_path}/"):
            subprocess.run(["fusermount3", "-u", "-z", place], check=False, capture_output=True)


@pytest.mark.timeout(900)  # the first of them starts the warm process; a page may start a dozen with torch
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_who_follows_a_page_gets_what_it_says(page: Path, desk: Desk) -> None:
    shown = blocks(page)
    desk.next_is_cold = page.name in OF_STARTS
    for block in shown:
        for name in block.values("file"):
            (desk.folder / name).write_text(block.text)
    typed = [block for block in shown if block.what == "run" and "background" not in block.words]
    for block in (block for block in typed if "first" in block.words):
        desk.run(block)
    background = [block for block in shown if "background" in block.words]
    assert len(background) <= 1, "a page has one job that runs meanwhile"
    if background:
        with desk.meanwhile(background[0], any("robust stop" in block.text for block in typed)):
            _run_all(desk, typed)
    else:
        _run_all(desk, typed)
    with suppress(AssertionError):
        wait_for(lambda: not desk.left(), "all processes to end", 60.0)
    assert [_command_line(pid) for pid in desk.left()] == [], "nothing is left behind"
    assert unknown_files(desk.folder) == [], "docs/files.md names every file of a run"


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
    return f"{pid}: gone"


def unknown_files(folder: Path) -> list[str]:
    """Return the files of all runs in a folder that the guide's table has not."""
    known = [_pattern(name) for name, _, _ in RUN_FILES]
    runs = (run for run in folder.glob("robust-runs/*/") if not run.name.startswith("."))
    found = (path for run in runs for path in run.rglob("*") if not path.is_dir())
    names = [path.relative_to(folder / "robust-runs").as_posix().partition("/")[2] for path in found]
    return sorted(name for name in names if not any(each.fullmatch(name) for each in known))


def _pattern(name: str) -> re.Pattern[str]:
    """Return what a name of the table matches: words in capitals and N stand for what differs."""
    escaped = re.escape(name).replace(re.escape("..."), ".*")
    return re.compile(re.sub(r"NNNN|[A-Z]{2,}|(?<=_)N|\b(?:ID)\b", "[^/]+", escaped))


def _run_all(desk: Desk, typed: list[Block]) -> None:
    for block in typed:
        missing = [need for need in block.values("needs") if not (shutil.which(need) or Path(need).exists())]
        if missing:
            pytest.skip(f"{block.where}: there is no {missing[0]}")
        if "first" not in block.words:
            desk.run(block)


@pytest.mark.parametrize("block", SKIPPED, ids=lambda block: block.where)
def test_what_is_not_run_says_why(block: Block) -> None:
    assert len(block.words[1]) > 5, f"{block.where}: skip WHY"
    pytest.skip(f"{block.where}: {block.words[1]}")


def test_every_fenced_command_is_run_or_says_why_not() -> None:
    unmarked = [
        block.where
        for page in (*pages(), *recipes())
        for block in blocks(page)
        if block.language == "sh" and block.what not in ("run", "skip")
    ]
    assert not unmarked
    assert len(RUNNABLE) >= 6


@pytest.mark.parametrize("page", [*pages(), *recipes()], ids=lambda page: page.name)
def test_every_command_that_is_shown_has_such_a_name_and_such_options(page: Path) -> None:
    for line in commands(page):
        words = [word for word in shlex.split(line) if word not in ("...", "&&", "|", ">")]
        wrong = _unknown_launch_options(words[1:]) if words[0] == "robust-run" else _unknown_options(words[1:])
        assert not wrong, f"{page.name}: {line!r} has {wrong}"


def _unknown_launch_options(words: list[str]) -> list[str]:
    known = {option.name: option for option in (*OPTIONS, *HELP_OPTIONS)}
    shorts = {option.short: option for option in known.values() if option.short}
    wrong, rest = [], iter(words)
    for word in rest:
        name, has_value, _ = word.removeprefix("--").partition("=")
        option = known.get(name) if word.startswith("--") else shorts.get(word[1:]) if word.startswith("-") else None
        if not word.startswith("-"):
            return wrong  # the script: what follows is its own
        if option is None:
            wrong.append(word)
        elif option.needs_value and not has_value:
            next(rest, None)
    return wrong


def _unknown_options(words: list[str]) -> list[str]:
    command: click.Command = robust
    context = click.Context(robust, info_name="robust")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            return words[:1]
        command, words = found, words[1:]
    if command.context_settings.get("ignore_unknown_options") or "--" in words:
        words = []  # options of another program
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "-h",
        "--help",
        "--version",
    }
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
