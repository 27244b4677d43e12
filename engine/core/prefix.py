"""PrefixIndex: which full blocks hold which content. A radix tree whose edges are runs of blocks.

A block is found under (parent entry, key, salt), by equality of integers and never by digest alone. A *node* is a run of
entries without branches, so that a prompt of 256 cached blocks costs one dictionary lookup and one array comparison, not
256 of each. An entry is (node, place); `owner` and `place` map a frame back to it.

Invariants: an entry's frame is held by whoever holds a frame below it, so the frames evicted first are always the ends
of leaves; siblings differ in their first key; a frame is indexed at most once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from engine.core.arrays import I32, I64, Bools, Index
from engine.core.content import Keys
from engine.core.errors import InvariantError

_NO_FRAMES: I32 = np.zeros(0, np.int32)


class _Node:
    """A run of `size` entries below `parent`; `keys` and `frames` have room to spare."""

    __slots__ = ("children", "frames", "keys", "label", "name", "parent", "size")

    def __init__(
        self, name: int, parent: _Node | None, label: bytes | str, keys: Keys | None, frames: I32
    ) -> None:
        self.name = name
        self.parent = parent
        self.label = label
        self.keys = keys
        self.frames = frames
        self.size = len(frames)
        self.children: dict[bytes | str, _Node] = {}


class PrefixIndex:
    """Content to frames, over `total` frames. `indexed[frame]` is kept true for what can be found."""

    def __init__(self, total: int, indexed: Bools) -> None:
        self._indexed = indexed
        self._owner: I64 = np.full(total, -1, np.int64)
        """Name of the node of each frame that is indexed."""
        self._place: I32 = np.zeros(total, np.int32)
        self._nodes: dict[int, _Node] = {}
        self._next_name = 0
        self._root = _Node(-1, None, "", None, _NO_FRAMES)

    def lookup(self, salt: str, keys: Keys) -> I32:
        """Frames of the longest run of leading blocks whose keys are `keys`. O(nodes on the path + words)."""
        node = self._root.children.get(_root_label(salt, keys))
        parts: list[I32] = []
        at = 0
        while node is not None and at < len(keys):
            node = node.children.get(keys[at].tobytes())
            if node is None:
                break
            assert node.keys is not None
            most = min(node.size, len(keys) - at)
            common = _common(node.keys[:most], keys[at : at + most])
            parts.append(node.frames[:common])
            at += common
            if common < node.size:
                break
        if not parts:
            return _NO_FRAMES
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def publish(self, salt: str, parent: int, keys: Keys, frames: I32) -> int:
        """Makes `frames` findable below the entry of frame `parent`, -1 for none; how many were, from the first on.

        Stops where an equal block is there already: the other frame stays, this one is not merged.
        """
        node, at = self._entry(_root_label(salt, keys), parent)
        label = keys[0].tobytes()
        if at < node.size:
            assert node.keys is not None
            if node.keys[at].tobytes() == label:
                return 0
            self._split(node, at)
        elif label in node.children:
            return 0
        if node.children or node.parent is None or node.keys is None:
            node = self._add(node, label, keys.copy(), frames.copy())
            first = 0
        else:
            first = node.size
            _append(node, keys, frames)
        self._owner[frames] = node.name
        self._place[frames] = np.arange(first, first + len(frames), dtype=np.int32)
        self._indexed[frames] = True
        return len(frames)

    def _entry(self, label: str, frame: int) -> tuple[_Node, int]:
        """The node of `frame`'s entry and the place after it; the root of `label` for -1."""
        if frame >= 0:
            node = self._nodes[int(self._owner[frame])]
            return node, int(self._place[frame]) + 1
        root = self._root.children.get(label)
        if root is None:
            root = self._add(self._root, label, None, _NO_FRAMES)
        return root, 0

    def _add(self, parent: _Node, label: bytes | str, keys: Keys | None, frames: I32) -> _Node:
        node = _Node(self._next_name, parent, label, keys, frames)
        self._next_name += 1
        parent.children[label] = node
        self._nodes[node.name] = node
        return node

    def _split(self, node: _Node, at: int) -> None:
        """Moves the entries from `at` on, and the children, into a node below."""
        assert node.keys is not None
        children = node.children
        node.children = {}
        below = self._add(
            node,
            node.keys[at].tobytes(),
            node.keys[at : node.size].copy(),
            node.frames[at : node.size].copy(),
        )
        below.children = children
        for child in children.values():
            child.parent = below
        node.size = at
        self._owner[below.frames] = below.name
        self._place[below.frames] -= at

    def drop(self, frames: Index) -> None:
        """Forgets `frames`, in eviction order: each the last of a leaf when its turn comes.

        Raises:
            InvariantError: an entry has others below it.
        """
        owners = self._owner[frames]
        changes = owners[1:] != owners[:-1]
        bounds = [0, len(frames)]
        if np.count_nonzero(changes):
            bounds[1:1] = (changes.nonzero()[0] + 1).tolist()
        for first, last in pairwise(bounds):
            node = self._nodes[int(owners[first])]
            node.size -= last - first
            if node.children or self._place[frames[last - 1]] != node.size:
                raise InvariantError("a block was evicted before a block that follows it")
            if node.size == 0:
                self._remove(node)
        self._indexed[frames] = False

    def _remove(self, node: _Node) -> None:
        while node.parent is not None and node.size == 0 and not node.children:
            del node.parent.children[node.label]
            del self._nodes[node.name]
            node = node.parent

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless tree, frames and flags agree. O(entries)."""
        seen: list[int] = []
        for node in self._nodes.values():
            frames = node.frames[: node.size]
            seen.extend(frames.tolist())
            if (self._owner[frames] != node.name).any():
                raise InvariantError("a frame does not point to its node")
            if not np.array_equal(self._place[frames], np.arange(node.size)):
                raise InvariantError("a frame does not know its place")
            if node.keys is not None and node.size and node.keys[0].tobytes() != node.label:
                raise InvariantError("a node's label is not its first key")
            if node.parent is None or node.parent.children.get(node.label) is not node:
                raise InvariantError("a node is not its parent's child")
        if len(set(seen)) != len(seen):
            raise InvariantError("a frame is indexed twice")
        if not np.array_equal(np.sort(seen), np.flatnonzero(self._indexed)):
            raise InvariantError("the indexed flags and the tree disagree")


def _root_label(salt: str, keys: Keys) -> str:
    """Keys of one width are compared with each other only."""
    return f"{keys.shape[1]}:{salt}"


def _common(one: Keys, other: Keys) -> int:
    """How many leading rows are equal."""
    different = one != other
    if not np.count_nonzero(different):
        return len(one)
    return int(different.argmax()) // int(one.shape[1])


def _append(node: _Node, keys: Keys, frames: I32) -> None:
    assert node.keys is not None
    size = node.size + len(frames)
    if size > len(node.frames):
        room = max(size, 2 * node.size)
        larger = np.empty((room, keys.shape[1]), node.keys.dtype)
        larger[: node.size] = node.keys[: node.size]
        spacious = np.empty(room, np.int32)
        spacious[: node.size] = node.frames[: node.size]
        node.keys, node.frames = larger, spacious
    node.keys[node.size : size] = keys
    node.frames[node.size : size] = frames
    node.size = size
