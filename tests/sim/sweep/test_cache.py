"""The cache: whole results or none."""

import os

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


def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "k.json"
    write_atomically(path, b"old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("k.json", b"old")]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        Cache(tmp_path / "file" / "points")


def test_without_a_folder_nothing_is_kept():
    cache = Cache(None)
    cache.put("k", AXIS)
    assert cache.get("k", Axis) is None
