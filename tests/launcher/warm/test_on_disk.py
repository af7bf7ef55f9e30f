"""Which packages of a warm process are looked at on disk, and what is seen of one that was replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.launcher.agent.warm.on_disk import OnDisk


def put(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").unlink(missing_ok=True)
    (folder / "__init__.py").write_text(text)


@pytest.mark.parametrize("folder", ["site-packages", "my_code"])
def test_an_installed_package_that_was_replaced_is_named_and_code_of_the_jobs_own_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path / folder)
    put(tmp_path / folder / "mine_on_disk", "")
    seen = OnDisk(("mine_on_disk.late", "sys", "nowhere_to_be_found"))
    assert seen.change() == ""
    put(tmp_path / folder / "mine_on_disk", "NEW = 1\n")
    is_told = "mine_on_disk was replaced on disk since the warm process imported it"
    assert seen.change() == (is_told if folder == "site-packages" else "")


def test_one_that_cannot_be_seen_now_is_in_memory_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    put(tmp_path / "site-packages/mine_on_disk", "")
    seen = OnDisk(("mine_on_disk",))
    (tmp_path / "site-packages").rename(tmp_path / "away")
    assert seen.change() == ""
