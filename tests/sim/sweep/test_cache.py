"""The cache: whole results or none."""

import sys

import pytest

from engine.core.errors import ConfigError
from sim.sweep.axes import Axis
from sim.sweep.cache import Cache, write_atomically

AXIS = Axis("replicas", (1, 2))


def test_what_was_put_is_what_is_got(tmp_path):
    cache = Cache(tmp_path / "points")
    assert cache.get("k", Axis) is None
    cache.put("k", AXIS)
    assert cache.get("k", Axis) == AXIS
    assert [path.name for path in (tmp_path / "points").iterdir()] == ["k.json"]


@pytest.mark.parametrize("damage", [b"", b'["replicas",[1', b'{"other":1}'])
def test_a_damaged_result_counts_as_absent(tmp_path, damage):
    cache = Cache(tmp_path)
    (tmp_path / "k.json").write_bytes(damage)
    assert cache.get("k", Axis) is None


def interrupted_at(line, function, *args):
    """Whether the function had a `line`-th line; Ctrl-C comes ahead of it."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code is not function.__code__:
            return None
        left -= event == "line"
        if not left:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_write_that_is_interrupted_anywhere_leaves_the_old_or_the_new(tmp_path):
    path = tmp_path / "k.json"
    found = []
    for line in range(1, 100):
        path.write_bytes(b"old")
        if not interrupted_at(line, write_atomically, path, b"new"):
            break
        [left] = tmp_path.iterdir()
        assert left == path, f"line {line}"
        found.append(path.read_bytes())
    assert found == sorted(found, reverse=True)
    assert found.count(b"old") >= 5
    assert path.read_bytes() == b"new"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        Cache(tmp_path / "file" / "points")


def test_without_a_folder_nothing_is_kept():
    cache = Cache(None)
    cache.put("k", AXIS)
    assert cache.get("k", Axis) is None
