"""The radix tree beside a dictionary of whole chains: the same answers for every prefix ever published, and no others."""

import numpy as np
import pytest

from engine.core.errors import InvariantError
from engine.core.prefix import PrefixIndex
from tests.engine.core.worlds import Choose, World, machine, rule, walk
from tests.reference.prefixes import Key, Prefixes

FRAMES = 24
SALTS = ["", "b", "1:"]


def as_keys(keys: list[Key], width: int, kind: type) -> np.ndarray:
    return np.array(keys, kind).reshape(-1, width)


class IndexWorld(World):
    """Keys are drawn from an alphabet of two, so that prefixes meet, branch and repeat all the time."""

    def __init__(self, choose: Choose) -> None:
        self.width = choose.one_of([1, 2, 8, 16])
        self.kind = choose.one_of([np.int32, np.int64])
        self.indexed = np.zeros(FRAMES, np.bool_)
        self.index = PrefixIndex(FRAMES, self.indexed)
        self.model = Prefixes()
        self.free = list(range(FRAMES))
        self.ever: list[tuple[str, list[Key]]] = []

    def some_keys(self, choose: Choose, most: int) -> list[Key]:
        """Keys that differ in one of their words only."""
        place = choose.one_of([0, self.width - 1])
        keys = []
        for _ in range(choose.between(1, most)):
            words = [7] * self.width
            words[place] = choose.between(0, 1)
            keys.append(tuple(words))
        return keys

    @rule(weight=4, when=lambda self: self.free)
    def publish(self, choose: Choose) -> None:
        keys = self.some_keys(choose, min(6, len(self.free)))
        parents = [-1, *self.model.chain_of]
        parent = choose.one_of([parents[-1], choose.one_of(parents)])
        salt = choose.one_of(SALTS) if parent < 0 else self.model.chain_of[parent][1]
        frames = [self.free[-1 - i] for i in range(len(keys))]
        given = np.array(frames, np.int32)
        words = as_keys(keys, self.width, self.kind)
        added = self.index.publish(salt, parent, words, given)
        words[:], given[:] = -5, -5  # What was given may be reused by its owner.
        assert added == self.model.publish(self.width, salt, parent, keys, frames)
        if added:
            del self.free[-len(frames) :]
            chain = self.model.chain_of[frames[-1]]
            self.ever.append((salt, list(chain[2:])))

    @rule(weight=4)
    def lookup(self, choose: Choose) -> None:
        if self.ever and choose.between(0, 3):
            salt, keys = choose.one_of(self.ever)
            keys = keys[: choose.between(1, len(keys))]
            if choose.between(0, 1):
                keys = keys + self.some_keys(choose, 3)
        else:
            salt, keys = choose.one_of(SALTS), self.some_keys(choose, 8)
        self.find(salt, keys)

    def find(self, salt: str, keys: list[Key]) -> None:
        words = as_keys(keys, self.width, self.kind)
        found = self.index.lookup(salt, words)
        assert found.tolist() == self.model.lookup(self.width, salt, keys)
        found[:] = -9  # The answer is the caller's.

    @rule(weight=3, when=lambda self: self.model.chain_of)
    def drop(self, choose: Choose) -> None:
        """Any eviction order that takes the ends of leaves only."""
        frames: list[int] = []
        for _ in range(choose.between(1, 8)):
            leaves = [f for f in self.model.chain_of if not self.model.has_child(f)]
            if not leaves:
                break
            frame = choose.one_of([leaves[-1], choose.one_of(leaves)])
            self.model.drop(frame)
            frames.append(frame)
        self.index.drop(np.array(frames, np.int32))
        self.free.extend(frames)

    def check(self) -> None:
        self.index.check_invariants()
        assert np.flatnonzero(self.indexed).tolist() == sorted(self.model.chain_of)
        for node in self.index._nodes.values():
            assert node.size or node.children or node.parent is self.index._root

    def finish(self, choose: Choose) -> None:
        for salt, keys in self.ever:
            self.find(salt, keys)
        while self.model.chain_of:
            self.drop(choose)
        self.check()
        assert not self.index._nodes
        for salt, keys in self.ever:
            self.find(salt, keys)


TestIndex = machine(IndexWorld, examples=40, steps=40)


@pytest.mark.parametrize("seed", range(4))
def test_index_equals_its_model_on_a_long_walk(seed):
    walk(IndexWorld, seed, 7_500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_index_equals_its_model_on_a_very_long_walk(seed):
    walk(IndexWorld, seed, 50_000)


def test_dropping_a_block_that_others_follow_is_an_invariant_error():
    index = PrefixIndex(4, np.zeros(4, np.bool_))
    index.publish("", -1, np.array([[1], [2]]), np.array([0, 1], np.int32))
    with pytest.raises(InvariantError, match="before a block that follows it"):
        index.drop(np.array([0], np.int32))


def test_equal_words_under_another_salt_or_width_are_other_content():
    index = PrefixIndex(4, np.zeros(4, np.bool_))
    index.publish("a", -1, np.array([[1, 1]]), np.array([0], np.int32))
    assert index.lookup("b", np.array([[1, 1]])).tolist() == []
    assert index.lookup("a", np.array([[1], [1]])).tolist() == []
    assert index.lookup("a", np.array([[1, 1]])).tolist() == [0]


def test_a_long_prompt_is_one_node_and_splits_only_where_another_leaves_it():
    index = PrefixIndex(600, np.zeros(600, np.bool_))
    keys = np.arange(256)[:, None]
    index.publish("", -1, keys, np.arange(256, dtype=np.int32))
    assert len(index._nodes) == 2  # With the root of the salt.
    other = np.concatenate([keys[:100], keys[100:200] + 1000])
    index.publish("", 99, other[100:], np.arange(256, 356, dtype=np.int32))
    assert len(index._nodes) == 4
    assert index.lookup("", keys).tolist() == list(range(256))
    assert index.lookup("", other).tolist() == [*range(100), *range(256, 356)]
    index.check_invariants()
