"""One try: real servers that answer, refuse, hang, send elsewhere; real commands that work, fail, hang, leave children."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from jobs import wait_for
from notices import webhook

from robust_run.launcher.records.notifier.delivery import Delivery
from robust_run.launcher.records.notify.target import NotifyTarget

BODY = b'{"text": "hello"}'
BUSY_S = 60.0
"""What a server may take to answer on a busy machine."""


def test_a_webhook_gets_the_json() -> None:
    with webhook() as hook:
        assert Delivery(NotifyTarget(url=hook.url), webhook_s=BUSY_S).hand_over(BODY).ok
        assert hook.told == [{"text": "hello"}]


@pytest.mark.parametrize(("status", "again"), [(400, False), (404, False), (429, True), (500, True), (503, True)])
def test_a_server_that_says_no_is_asked_again_only_if_that_may_help(status: int, again: bool) -> None:
    with webhook(lambda _: status, {"Retry-After": "7"}) as hook:
        result = Delivery(NotifyTarget(url=hook.url), webhook_s=BUSY_S).hand_over(BODY)
    assert (result.ok, result.again, result.pause_s) == (False, again, 7.0)
    assert result.words == f"HTTP status {status}"


def test_a_redirection_is_not_followed() -> None:
    with webhook() as other, webhook(lambda _: 302, {"Location": other.url}) as hook:
        result = Delivery(NotifyTarget(url=hook.url), webhook_s=BUSY_S).hand_over(BODY)
        assert not result.ok
        assert other.requests == 0


def test_a_server_that_hangs_is_given_up_and_not_asked_twice_at_once() -> None:
    with webhook(lambda number: None if number == 0 else 200) as hook:
        delivery = Delivery(NotifyTarget(url=hook.url), webhook_s=0.2)
        assert "no answer" in delivery.hand_over(BODY).words
        hook.released.set()
        wait_for(lambda: delivery.hand_over(BODY).ok, "the server to answer again", 60)


def test_where_nobody_listens_that_is_said_without_the_address() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # nobody else gets the port
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/secret-path"
        result = Delivery(NotifyTarget(url=url), webhook_s=BUSY_S).hand_over(BODY)
    assert (result.ok, result.again) == (False, True)
    assert "secret" not in result.words


def test_a_command_gets_the_json_and_no_secret_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST_TOKEN", "the token of the job")
    code = f"import os, sys; open({str(tmp_path / 'told')!r}, 'w').write(sys.stdin.read() + str('ROBUST_TOKEN' in os.environ))"
    assert Delivery(NotifyTarget(argv=(sys.executable, "-c", code))).hand_over(BODY).ok
    assert (tmp_path / "told").read_text() == BODY.decode() + "False"


@pytest.mark.parametrize(
    ("code", "words"), [("import sys; sys.exit(3)", "exit code 3"), ("import os; os.kill(os.getpid(), 9)", "signal 9")]
)
def test_a_command_that_fails_says_how(code: str, words: str) -> None:
    result = Delivery(NotifyTarget(argv=(sys.executable, "-c", code))).hand_over(BODY)
    assert not result.ok
    assert words in result.words


def test_a_command_that_does_not_read_is_no_fault() -> None:
    body = json.dumps({"text": "x" * 200_000}).encode()
    assert Delivery(NotifyTarget(argv=(sys.executable, "-c", "pass"))).hand_over(body).ok


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    code = 'sleep 600 & echo $$ $! > "$1/draft"; mv "$1/draft" "$1/pids"; wait'
    for limit_s in (2.0, 60.0):  # on a busy machine it may not have begun in time
        result = Delivery(NotifyTarget(argv=("sh", "-c", code, "sh", str(tmp_path))), command_s=limit_s).hand_over(BODY)
        assert (result.ok, result.again) == (False, True)
        if (tmp_path / "pids").exists():
            break
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        wait_for(lambda pid=pid: not _runs(pid), f"process {pid} to be gone", 60)


def test_a_command_that_is_not_there_is_not_tried_again() -> None:
    result = Delivery(NotifyTarget(argv=("no-such-command-here",))).hand_over(BODY)
    assert (result.ok, result.again) == (False, False)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
