"""What --notify names: an address or a command; and what of it may be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.errors import UserError
from robust_run.launcher.records.notifier.notifier import target_of
from robust_run.launcher.records.notify.target import NotifyTarget, is_hidden, named, parse, shown

SECRET = "T00000000/B000/XXXXsecretXXXX"


def test_an_address_and_a_command() -> None:
    assert parse(f"https://hooks.example.com/services/{SECRET}").url.endswith(SECRET)
    assert parse("python tell.py --to 'the night shift'").argv == ("python", "tell.py", "--to", "the night shift")
    assert parse("page-me").argv == ("page-me",)


def test_no_shell_reads_a_command() -> None:
    assert parse("echo $HOME; rm -rf /").argv == ("echo", "$HOME;", "rm", "-rf", "/")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "ftp://host/x",
        "https://",
        "http://:80/x",
        "http://host:99999/",
        "http://ho\x00st/",
        "'open",
        "https://h/\x1b",
    ],
)
def test_what_is_neither_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match="--notify") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"https://hooks.example.com/services/{SECRET}",
        f"https://user:{SECRET}@example.com/x",
        f"https://example.com:8443/x?token={SECRET}",
        f"tell --token {SECRET}",
        f"TOKEN={SECRET} tell",
        f"TOKEN={SECRET}",
        f"ftp://example.com/{SECRET}",
    ],
)
def test_a_secret_is_never_shown(text: str) -> None:
    assert SECRET not in shown(text)
    assert is_hidden(shown(text))
    try:
        assert SECRET not in parse(text).shown
    except UserError as error:
        assert SECRET not in str(error)


def test_the_host_of_a_webhook_is_shown() -> None:
    assert shown("https://hooks.example.com:8443/a/b") == "https://hooks.example.com:8443/..."
    assert shown("page-me") == "page-me"


def test_several_targets_are_told_apart_without_their_secrets() -> None:
    hooks = [f"https://hooks.slack.com/{SECRET}", "https://hooks.slack.com/other", "@/etc/hook", f"tell {SECRET}"]
    names = [named(text, number, 4) for number, text in enumerate(hooks, 1)]
    assert names == [
        "target 1 of 4, https://hooks.slack.com/...",
        "target 2 of 4, https://hooks.slack.com/...",
        "target 3 of 4, @/etc/hook",
        "target 4 of 4, tell ...",
    ]
    assert named("page-me", 1, 1) == "page-me", "of one there is no question which"
    assert not is_hidden("page-me")


def test_a_file_keeps_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_text(f"https://hooks.example.com/{SECRET}\nmore\n")
    assert target_of(f"@{path}") == NotifyTarget(url=f"https://hooks.example.com/{SECRET}")
    assert shown(f"@{path}") == f"@{path}"
    with pytest.raises(UserError, match="cannot read the file"):
        target_of(f"@{tmp_path / 'none'}")


def test_what_a_journal_kept_can_not_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give it again"):
        target_of("https://hooks.example.com/...")


def test_credentials_in_an_address_are_refused_at_the_start() -> None:
    with pytest.raises(UserError, match="before @ would not be sent") as caught:
        parse("http://ann:hunter2@example.com/x")
    assert "hunter2" not in str(caught.value)


def test_an_address_without_a_host_is_shown_as_such() -> None:
    assert shown("https://") == "https://..."
