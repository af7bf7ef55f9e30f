"""What `--json` prints has one form, whichever command it is."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import click
import msgspec
import pytest

from robust_run.json_output import document
from robust_run.robust_cli import robust

SOURCES = Path(__file__).parents[1] / "robust_run"


class Found(msgspec.Struct):
    name: str
    at_unix_s: float


@dataclasses.dataclass
class Counted:
    count: int


def test_fields_stand_beside_the_schema() -> None:
    assert json.loads(document(Found("a", 1.5))) == {"schema": 1, "name": "a", "at_unix_s": 1.5}
    assert json.loads(document(Counted(3))) == {"schema": 1, "count": 3}
    assert json.loads(document({"count": 3})) == {"schema": 1, "count": 3}


def test_what_has_a_schema_of_its_own_keeps_it() -> None:
    assert json.loads(document({"schema": 4, "count": 3})) == {"schema": 4, "count": 3}


def test_lists_and_what_may_be_missing_have_a_name() -> None:
    assert json.loads(document([Counted(1)], "counts")) == {"schema": 1, "counts": [{"count": 1}]}
    assert json.loads(document(None, "newest")) == {"schema": 1, "newest": None}
    assert json.loads(document(Counted(1), "newest")) == {"schema": 1, "newest": {"count": 1}}


def test_a_list_without_a_name_is_a_mistake_that_is_seen() -> None:
    with pytest.raises(msgspec.ValidationError):
        document([1])


def test_no_command_prints_json_in_another_way() -> None:
    """But for lines of a journal, and what the controller has answered, which has its schema."""
    for path in SOURCES.rglob("*.py"):
        assert not re.search(r"(echo|print)\(msgspec\.json\.encode", path.read_text()), path


def _commands(group: click.Group) -> list[click.Command]:
    context = click.Context(group)
    found = [group.get_command(context, name) for name in group.list_commands(context)]
    return [inner for each in found if each for inner in (_commands(each) if isinstance(each, click.Group) else [each])]


def test_the_option_is_called_the_same_everywhere() -> None:
    with_json = [each for each in _commands(robust) if any("--json" in option.opts for option in each.params)]
    assert len(with_json) > 20
    names = {option.name for each in with_json for option in each.params if "--json" in option.opts}
    assert names == {"as_json"}
