"""What stands in a colour can be read: contrast as WCAG 2.2 (1.4.3) counts it, in light and in dark."""

from __future__ import annotations

import re

import pytest

from robust_run.report.pages.style import CSS

LEAST = 4.5

#: Text colour and what it stands on.
PAIRS = [
    *((text, ground) for text in ("ink", "muted", "link") for ground in ("paper", "surface")),
    *((text, "paper") for text in ("bad", "warn", "good")),
    *((text, f"{wash}-wash") for wash in ("bad", "warn") for text in ("ink", "muted", wash)),
    ("on-state", "bad"),
    ("on-state", "warn"),
    ("ink", "wait"),
    ("ink", "calm"),
    ("ink", "none"),
    ("muted", "none"),
]


def colours(scheme: str) -> dict[str, str]:
    """The custom properties of a scheme; what dark does not set is as in light."""
    light, dark = re.findall(r":root\{([^}]*)\}", CSS)[:2]
    named = dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-f]+)", light))
    return named if scheme == "light" else named | dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-f]+)", dark))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(scheme: str, text: str, ground: str) -> None:
    found = colours(scheme)
    one, other = sorted((luminance(found[text]), luminance(found[ground])))
    assert (other + 0.05) / (one + 0.05) >= LEAST


@pytest.mark.parametrize(
    ("state", "text"),
    [("culprit", "on-state"), ("suspect", "on-state"), ("waiting", "ink"), ("working", ""), ("ended", "muted")],
)
def test_states_use_these_pairs(state: str, text: str) -> None:
    rules = re.findall(rf"\.s-{state}\b[^{{]*\{{(background[^}}]*)\}}", CSS)
    assert rules
    for rule in rules:
        assert re.findall(r"(?<!-)color:var\(--([a-z-]+)\)", rule) == ([text] if text else []), rule
