"""The rules' file: what it changes, and what is refused with which words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import robust_run.health
from robust_run.errors import UserError
from robust_run.health.rules.book import load, parse
from robust_run.health.rules.deciding import rule_of
from robust_run.health.rules.names import is_known, names
from robust_run.health.rules.table import DEFAULTS
from robust_run.health.rules.types import Book, RuleLimits
from robust_run.health.sensors.settings import SensorSettings

FILE = """
max_evict_share = 0.05

[rules."network.link_down"]
count = 3
within_s = 600

[rules."gpu.xid.31"]
rung = "evict"
confidence = "medium"

[rules."cpu.neighbour"]
on = false

[sensors.gpu]
hot_celsius = 85
interval_s = 1

[outliers]
hold = 2
settle_s = 600
"""


def test_no_file_means_the_defaults() -> None:
    assert load("") == Book(rules=DEFAULTS, limits=RuleLimits(), sensors=SensorSettings())


def test_an_empty_file_changes_nothing() -> None:
    assert parse("") == load("")


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(FILE)
    book = load(str(path))
    assert book.limits.max_evict_share == 0.05
    link = book.rules["network.link_down"]
    assert (link.count, link.within_s, link.rung, link.counts_as) == (3, 600.0, "evict", "network")
    assert book.rules["gpu.xid.31"].rung == "evict"
    assert (book.sensors.gpu.hot_celsius, book.sensors.gpu.interval_s, book.sensors.gpu.timeout_s) == (85.0, 1.0, 10.0)
    assert book.rules["gpu.lost"] == DEFAULTS["gpu.lost"]
    assert (book.outliers.on, book.outliers.apart, book.outliers.hold, book.outliers.settle_s) == (
        True,
        4.0,
        2.0,
        600.0,
    )
    assert rule_of(book, "cpu.neighbour") is None


def test_a_narrower_name_than_any_row_s_refines_the_row() -> None:
    book = parse('[rules."gpu.xid.77"]\nrung = "diagnose"\n')
    assert rule_of(book, "gpu.xid.77") == ("gpu.xid.77", book.rules["gpu.xid.77"])
    assert book.rules["gpu.xid.77"].confidence == DEFAULTS["gpu.xid"].confidence


REFUSED = {
    "no TOML": ("rules = [", "is no TOML"),
    "a table that is none of ours": ("[ruls]", "'ruls' is not known; the nearest: rules"),
    "an event that is none": (
        '[rules."netwrok.link_down"]\ncount = 1',
        'no event has such a name; the nearest: network.link_down',
    ),
    "a field that is none": ('[rules."gpu.lost"]\nrang = "evict"', "'rang' is not known; the nearest: rung"),
    "a rung that is none": (
        '[rules."gpu.lost"]\nrung = "reboot"',
        "rung = 'reboot': a rung is one of evict, diagnose, relaunch, rollback, inquire, stop, report",
    ),
    "a rung that is no word": ('[rules."gpu.lost"]\nrung = ["evict"]', "a rung is one of evict, diagnose"),
    "a confidence that is none": ('[rules."gpu.lost"]\nconfidence = "sure"', "'sure': it is one of high, medium, low"),
    "a letter too few after a name that has a row": (
        '[rules."network.link_dwon"]\ncount = 1',
        "no event has such a name; the nearest: network.link_down",
    ),
    "letters that changed places": (
        '[rules."disk.read_onyl"]\nrung = "report"',
        "no event has such a name; the nearest: disk.read_only",
    ),
    "an Xid without a number": ('[rules."gpu.xid.nine"]\nrung = "report"', "no event has such a name"),
    "a metric in which nodes are not compared": (
        '[rules."outlier.cpu_precent"]\non = false',
        "the nearest: outlier.cpu_percent",
    ),
    "a count below one": ('[rules."gpu.lost"]\ncount = 0', "count: expected `int` >= 1"),
    "a count that is text": ('[rules."gpu.lost"]\ncount = "2"', "count: expected `int`, got `str`"),
    "a count without its time": ('[rules."gpu.lost"]\ncount = 2', "count = 2 needs within_s"),
    "a name without quotes": ('[rules.gpu.lost]\ncount = 2', 'write the name in quotes: [rules."gpu.lost"]'),
    "a row that is none": ('[rules]\n"gpu.lost" = 3', '[rules."gpu.lost"] must be a table'),
    "a share above one": ("max_evict_share = 10", "max_evict_share: expected `float` <= 1.0"),
    "a sensor that is none": ("[sensors.gpus]", "there is no such sensor; the nearest: gpu"),
    "a threshold that is none": ("[sensors.gpu]\nhot_celcius = 3", "'hot_celcius' is not known; the nearest: hot_celsius"),
    "an interval of nothing": ("[sensors.gpu]\ninterval_s = 0", "interval_s: expected `float` >= 0.05"),
    "sensors that are no table": ("sensors = 3", "sensors is a int, and must be a table"),
    "a setting of outliers that is none": ("[outliers]\nholt = 2", "'holt' is not known; the nearest: hold"),
    "a time that is none": ("[outliers]\nsettle_s = -1", "settle_s"),
    "a number that is none": ("[sensors.gpu]\nhot_celsius = nan", "hot_celsius"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=list(REFUSED))
def test_a_mistake_is_refused_in_one_line_that_names_it(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(text, "my.toml")
    message = str(refused.value)
    assert message.startswith(("my.toml", "the rules"))
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "name", ["gpu.xid.9999", "outlier.cpu_percent", "cpu.pressure", "disk.full", "store.slow", "outlier"]
)
def test_each_name_that_an_event_has_may_have_a_rule(name: str) -> None:
    assert parse(f'[rules."{name}"]\nrung = "report"\n').rules[name].rung == "report"


def test_no_sensor_says_what_no_rule_may_be_made_for() -> None:
    """Names stand in the sensors' code as they are; what a sensor only notes for people needs no rule."""
    root = Path(robust_run.health.__file__).parent
    notes = {"kernel_log.lost", "memory.shared", "sensors.ended", "outlier.ended", "gpu.xid."}
    first = "|".join(sorted({name.partition(".")[0] for name in names()}))
    said: set[str] = set()
    for path in (*root.glob("sensors/**/*.py"), *root.glob("signs/*.py"), *root.glob("metrics/*.py")):
        constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        said |= {each for each in constants if isinstance(each, str) and re.fullmatch(rf"({first})\.[a-z_.]+", each)}
    assert {"network.link_down", "disk.read_only", "cpu.pressure"} <= said, "the code was read"
    assert [each for each in sorted(said - notes) if not is_known(each)] == []


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load(str(tmp_path / "none.toml"))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.toml"
    path.write_text("#" * (1 << 21))
    with pytest.raises(UserError, match="larger than 1 MiB"):
        load(str(path))


@given(st.text(max_size=200))
def test_any_text_is_a_book_or_refused(text: str) -> None:
    try:
        assert parse(text).rules
    except UserError as error:
        assert str(error)


def test_a_number_of_too_many_digits_and_names_that_steer_a_terminal_are_one_plain_line() -> None:
    for text in (f"max_evict_share = {'9' * 5000}", '[rules."gpu\\u001b[2J\\n"]\nrung = "evict"\n'):
        with pytest.raises(UserError) as caught:
            parse(text)
        assert str(caught.value).isprintable()
