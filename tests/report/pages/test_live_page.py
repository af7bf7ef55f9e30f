"""The page of a job that runs renews itself, keeps the reader's place, needs the token, and stays when all is over."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from browser import opened
from jobs import Job, run, running, script, wait_for
from page_ground import assert_harmless, look_at

PROGRAM = """
import os, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"runs-{attempt}-{rank}", "w").close()
while not os.path.exists("enough"):
    if rank == "1" and attempt == "0" and os.path.exists("die"):
        raise RuntimeError("<b>bold</b> words")
    time.sleep(0.02)
"""


def address(job: Job) -> tuple[str, str]:
    """Return the job's URL and its token."""
    place = wait_for(
        lambda: (job.run_dir / "api.json").exists() and json.loads((job.run_dir / "api.json").read_text()), "the API"
    )
    port = place["http"].rpartition(":")[2]
    return f"http://127.0.0.1:{port}", (job.run_dir / "token").read_text().strip()


def get(url: str, token: str = "", accept: str = "text/html") -> tuple[int, str, str]:
    """Return status, type and body."""
    headers = {"Accept": accept} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


pytestmark = pytest.mark.timeout(600)

OPTIONS = ("--nproc-per-node", "2", "--no-warm", "--http-port", "0", "--restart-grace", "1")


def test_a_live_page_renews_itself_and_keeps_the_readers_place(tmp_path: Path) -> None:
    async def read(job: Job, url: str, token: str) -> None:
        async with opened(f"{url.replace('//', f'//reader:{token}@')}/") as page:
            await page.wait_for(
                "document.querySelector('.kind') && document.querySelector('.kind').textContent === 'running'"
            )
            await page.value("document.getElementById('kinds').open = true")
            await page.value("document.querySelector('#kinds summary').focus()")
            await page.wait_for("+document.body.dataset.renewed >= 2")
            (tmp_path / "die").touch()
            await page.wait_for("!!document.querySelector('a[href=\"incidents/0001.html\"]')")
            said = await page.value("document.querySelector('[data-part=incidents]').innerText")
            assert "<b>bold</b> words" in said
            await page.wait_for("document.querySelector('h1').innerText.includes('attempt 1')")
            assert await page.value("document.getElementById('kinds').open"), "what the reader had opened"
            focus = (
                "document.activeElement.tagName === 'SUMMARY' && document.activeElement.parentElement.id === 'kinds'"
            )
            assert await page.value(focus), "where the reader was"
            bold = await page.value("Array.from(document.querySelectorAll('main b')).map(b => b.textContent)")
            assert bold and "bold" not in bold, "none of them is the job's"
            assert not page.errors, page.errors
            (tmp_path / "enough").touch()
            await page.wait_for("/over|no answer/.test(document.getElementById('live').innerText)")

    program = script(tmp_path, PROGRAM)
    with running(tmp_path, *OPTIONS, program, cwd=tmp_path) as job:
        url, token = address(job)
        wait_for(lambda: (tmp_path / "runs-0-1").exists(), "the workers")
        asyncio.run(read(job, url, token))
        assert job.finish() == 0
    seen = look_at(job.run_dir, "report.html")
    assert not seen["bad"]
    assert seen["width"] <= 390, seen["wide"]


def test_pages_need_the_token_and_lead_nowhere_else(tmp_path: Path) -> None:
    program = script(tmp_path, PROGRAM)
    with running(tmp_path, *OPTIONS, program, cwd=tmp_path) as job:
        url, token = address(job)
        (tmp_path / "die").touch()
        wait_for(lambda: (tmp_path / "runs-1-1").exists(), "the second attempt")
        for path in (
            "/",
            "/page",
            "/report.html",
            "/incidents/0001.html",
            "/incidents/0001.json",
            "/attempt_0/1/stderr.log",
        ):
            assert get(url + path)[0] == 401, path
            assert get(url + path, "x" * 64)[0] == 401, path
        status, kind, page = get(f"{url}/", token)
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert_harmless(page)
        assert get(f"{url}/", token, accept="*/*")[1].startswith("text/plain"), "who is no browser gets text"
        status, _, page = get(f"{url}/incidents/0001.html", token)
        assert status == 200
        assert_harmless(page)
        assert "bold" in page
        assert json.loads(get(f"{url}/incidents/0001.json", token)[2])["verdict"]["kind"] == "code"
        assert "href='../attempt_0/1/stderr.log'" in page
        status, kind, log = get(f"{url}/attempt_0/1/stderr.log", token)
        assert (status, kind) == (200, "text/plain; charset=utf-8"), "no browser takes it for a page"
        assert "<b>bold</b> words" in log
        for path in (
            "/attempt_0/0/stderr.log",  # no incident names it
            "/attempt_0/1/error.json",
            "/incidents/0002.html",
            "/incidents/0000.html",
            "/incidents/..%2ftoken",
            "/incidents/0001.json.tmp",
            "/incidents/x",
        ):
            assert get(url + path, token)[0] == 404, path
        (tmp_path / "enough").touch()
        assert job.finish() == 0
    assert "pages: " in job.err


def test_pages_are_left_when_a_job_is_over_and_can_be_written_again(tmp_path: Path) -> None:
    (tmp_path / "die").touch()
    code, job = run(
        tmp_path, "--nproc-per-node", "2", "--no-warm", "--max-restarts", "0", script(tmp_path, PROGRAM), cwd=tmp_path
    )
    assert code == 1
    report, page = job.run_dir / "report.html", job.run_dir / "incidents" / "0001.html"
    assert "Job stopped" in page.read_text()
    first = report.read_text()
    assert "Failed after" in first
    for path in (report, page):
        path.unlink()
    (job.run_dir / "startup.json").unlink(missing_ok=True)
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "report", str(job.run_dir)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert os.path.join(job.run_id, "report.html") in done.stdout
    assert "Job stopped" in page.read_text()
    assert "Failed after" in report.read_text()


@pytest.mark.parametrize("damage", ["empty", "cut", "foreign", "hostile scene"])
def test_a_damaged_run_directory_gives_a_page_or_a_reason(tmp_path: Path, damage: str) -> None:
    (tmp_path / "die").touch()
    _, job = run(
        tmp_path, "--no-warm", "--nproc-per-node", "2", "--max-restarts", "0", script(tmp_path, PROGRAM), cwd=tmp_path
    )
    journal, scene = job.run_dir / "journal.jsonl", job.run_dir / "incidents" / "0001.scene.json"
    content = journal.read_bytes()
    if damage == "hostile scene":
        scene.write_bytes(b'{"at_s": 1e999, "attempt": [')
    else:
        journal.write_bytes({"empty": b"", "cut": content[: len(content) * 2 // 3], "foreign": b"\xff\x00{]\n"}[damage])
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "report", str(job.run_dir)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    if damage in ("empty", "foreign"):
        assert done.returncode != 0
        assert len(done.stderr.strip().splitlines()) == 1
    else:
        assert done.returncode == 0, done.stderr
        assert_harmless((job.run_dir / "report.html").read_text())
