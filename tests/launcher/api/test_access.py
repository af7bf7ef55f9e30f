"""What each token of a job lets in to."""

from __future__ import annotations

import base64

import pytest

from robust_run.launcher.operator.server.access import AccessTokens
from robust_run.launcher.records.token import reading_token

TOKEN = "the-job's"


def basic(secret: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{secret}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "may"),
    [
        (f"Bearer {TOKEN}", "all"),
        (f"bearer  {TOKEN} ", "all"),
        (basic(TOKEN), "all"),
        (f"Bearer {reading_token(TOKEN)}", "read"),
        (basic(reading_token(TOKEN)), "read"),
        ("Bearer numbers", "metrics"),
        ("Bearer another", ""),
        ("Bearer", ""),
        ("Basic ???", ""),
        (f"Digest {TOKEN}", ""),
        (TOKEN, ""),
        ("", ""),
    ],
)
def test_a_token_is_taken_as_programs_and_browsers_send_it(header: str, may: str) -> None:
    assert AccessTokens(TOKEN, "numbers").allow(header) == may


def test_without_a_token_of_its_own_nobody_is_let_in_to_metrics_by_an_empty_one() -> None:
    assert AccessTokens(TOKEN).allow("Bearer ") == ""


def test_a_job_without_a_token_lets_nobody_in() -> None:
    assert AccessTokens("", "numbers").allow("Bearer ") == AccessTokens("", "numbers").allow("Bearer numbers") == ""
