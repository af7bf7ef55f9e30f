"""Where an image of an environment may be shown."""

from __future__ import annotations

import pytest

from robust_run.prefetch import belonging


@pytest.mark.parametrize(
    "folder",
    ["/", "/usr", "/usr/lib/python3", "/etc", "/etc/ssl", "/lib64", "/bin", "/proc", "/proc/self", "/sys/fs", "/dev/shm",
     "/tmp", "/var", "/var/lib", "/home", "/root", "/run", "/opt", "/usr/local", "/usr/local/lib", "/boot/x"],
)  # fmt: skip
def test_folders_of_the_system_are_nobodys(folder: str) -> None:
    assert "folder of the system" in belonging.why_not(folder)


@pytest.mark.parametrize(
    "folder",
    [
        "/opt/env",
        "/home/ann/env",
        "/root/venv",
        "/tmp/x/env",
        "/usr/local/conda",
        "/scratch/me/env",
        "/env",
        "/etcetera",
    ],
)
def test_folders_of_their_own_are_for_environments(folder: str) -> None:
    assert belonging.why_not(folder) == ""


def test_what_must_be_seen_is_not_hidden() -> None:
    seen = {"/home/ann/work": "the working directory", "": "nothing"}
    assert belonging.why_not("/home/ann", seen) == "it would hide the working directory (/home/ann/work)"
    assert belonging.why_not("/home/ann/work", seen) != ""
    assert belonging.why_not("/home/ann/work/env", seen) == ""
    assert belonging.why_not("/home/an", seen) == ""
