"""Where hot lists lie."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from servers.model_origin import ModelOrigin

from robust_run.prefetch import hotstore
from robust_run.prefetch.hotstore import HotStore
from robust_run.prefetch.rules.types import HotKey, Touch

KEY = HotKey(image="1" * 64, launch="abc", machine="x86_64")


def test_a_list_lies_beside_the_image_and_grows_with_launches(tmp_path: Path) -> None:
    store = HotStore(str(tmp_path / "train.sqsh"), str(tmp_path / "cache"))
    assert store.load(KEY) == (None, ())
    first, place = store.record(KEY, [[Touch(1, 10)], [Touch(2, 20)]], 1.5)
    second, _place = store.record(KEY, [[Touch(1, 12)]], 1.5)
    assert Path(place).parent == tmp_path / "train.sqsh.hot"
    assert (first.launches, second.launches) == (1, 2)
    assert store.load(KEY) == (second, ())
    assert store.load(HotKey(image="1" * 64, launch="other", machine="x86_64"))[0] is None


def test_where_the_image_cannot_be_written_beside_the_list_is_the_users_own(tmp_path: Path) -> None:
    store = HotStore("http://127.0.0.1:9/train.sqsh", str(tmp_path / "cache"))
    _hot, place = store.record(KEY, [[Touch(1, 10)]], 1.0)
    assert Path(place).parent == tmp_path / "cache" / "hot"
    found, _problems = store.load(KEY)
    assert found is not None
    assert found.launches == 1


def test_a_list_beside_an_image_on_a_web_server_is_found(tmp_path: Path) -> None:
    made, _place = HotStore(str(tmp_path / "train.sqsh"), str(tmp_path / "mine")).record(KEY, [[Touch(1, 10)]], 1.0)
    with ModelOrigin(tmp_path) as origin:
        assert HotStore(f"{origin.url}train.sqsh", str(tmp_path / "cache")).load(KEY) == (made, ())


def test_nodes_of_a_launch_add_to_the_list_that_they_share(tmp_path: Path) -> None:
    nodes = [HotStore(str(tmp_path / "train.sqsh"), str(tmp_path / f"cache-{number}")) for number in range(3)]
    nodes[0].record(KEY, [[Touch(1, 10)]], 1.0, "launch")
    nodes[1].record(KEY, [[Touch(5, 10)]], 1.0, "launch")
    nodes[2].record(KEY, [[Touch(9, 10)]], 1.0, "launch", own_only=True)
    shared, own = (node.load(KEY)[0] for node in (nodes[0], nodes[2]))
    assert shared is not None
    assert (shared.launches, [hot.start for hot in shared.ranges]) == (1, [1, 5])
    assert own == shared, "of two lists the one with more launches counts, and of equal ones that beside the image"
    assert len(list((tmp_path / "cache-2" / "hot").glob("*.json"))) == 1
    assert not list((tmp_path / "cache-0").rglob("*.json"))


def test_a_damaged_list_is_said_and_replaced(tmp_path: Path) -> None:
    store = HotStore(str(tmp_path / "train.sqsh"), str(tmp_path / "cache"))
    _hot, place = store.record(KEY, [[Touch(1, 10)]], 1.0)
    Path(place).write_bytes(b'{"schema":')
    found, problems = store.load(KEY)
    assert found is None
    assert "records a new one" in problems[0]
    assert store.record(KEY, [[Touch(1, 10)]], 1.0)[0].launches == 1


def test_a_list_of_another_image_under_our_name_is_not_used(tmp_path: Path) -> None:
    store = HotStore(str(tmp_path / "train.sqsh"), str(tmp_path / "cache"))
    _hot, place = store.record(KEY, [[Touch(1, 10)]], 1.0)
    other = HotKey(image="2" * 64, launch="abc", machine="x86_64")
    Path(place).rename(Path(place).with_name(hotstore.file_name(other)))
    found, problems = store.load(other)
    assert found is None
    assert "another image" in problems[0]


@given(st.text(min_size=1, max_size=100), st.text(min_size=1, max_size=100))
def test_the_name_of_a_file_is_never_a_path(launch: str, machine: str) -> None:
    name = hotstore.file_name(HotKey(image="1" * 64, launch=launch, machine=machine))
    assert "/" not in name
    assert not name.startswith(".")
    assert len(name) < 150
    assert name.isprintable()


def test_nodes_that_write_at_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    """Each has a cache, and so a lock, of its own; only the lock beside the image is common."""
    image = str(tmp_path / "train.sqsh")
    nodes = [HotStore(image, str(tmp_path / f"cache-{number}"), lock_limit_s=60.0) for number in range(8)]
    together = threading.Barrier(len(nodes))

    def record(number: int) -> None:
        together.wait(60)
        nodes[number].record(KEY, [[Touch(number * 10, 10)]], 1.0, "launch")

    threads = [threading.Thread(target=record, args=(number,)) for number in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found, _problems = nodes[0].load(KEY)
    assert found is not None
    assert sorted(hot.start for hot in found.ranges) == [number * 10 for number in range(len(nodes))]
