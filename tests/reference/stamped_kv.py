"""A KV pool in which every slot remembers what was written to it, so that a read of foreign memory is seen.

A stamp names a whole prefix: (stamp before it, token), interned, with a root for each salt or private request. Two slots
hold equal stamps only where equal tokens stand behind equal prefixes, so sharing is allowed exactly where it is sound.
"""

from collections.abc import Sequence

import numpy as np

from engine.core.plan import Plan, Transfer


class StampedKV:
    """Executes plans on stamps instead of tensors, through a mirror of the block tables, and samples by a fixed rule."""

    def __init__(self, num_blocks: int, block_size: int, host_blocks: int = 0) -> None:
        self.block_size = block_size
        self.slots = np.full((num_blocks, block_size), -1, np.int64)
        self.host = np.full((host_blocks, block_size), -1, np.int64)
        self.mirror: dict[tuple[int, int], int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.names: dict[int, tuple[object, int, int]] = {}
        self._interned: dict[tuple[object, int], int] = {}

    def begin(
        self, row: int, root: object, request: int, index: int, prompt: Sequence[int]
    ) -> None:
        """`row` stands for sequence `index` of `request` from now on."""
        self.tokens[row] = list(prompt)
        self.names[row] = (root, request, index)

    def execute(self, plan: Plan) -> list[int]:
        """Applies deltas and copies, checks every read, writes, samples: a token for each of `plan.sampling`."""
        for row, column, block in zip(
            plan.delta_rows.tolist(),
            plan.delta_cols.tolist(),
            plan.delta_blocks.tolist(),
            strict=True,
        ):
            self.mirror[row, column] = block
        for source, target in zip(
            plan.copy_sources.tolist(), plan.copy_targets.tolist(), strict=True
        ):
            self.slots[target] = self.slots[source]
        written: set[tuple[int, int]] = set()
        sampled: list[int] = []
        rows, ends = plan.rows.tolist(), (plan.starts + plan.counts).tolist()
        for row, start, end in zip(rows, plan.starts.tolist(), ends, strict=True):
            assert end > start
            stamps = self._stamps(row, end)
            for position in range(start):
                assert self._slot(row, position) == stamps[position], "a foreign read"
            for position in range(start, end):
                block = self.mirror[row, position // self.block_size]
                place = (block, position % self.block_size)
                assert place not in written, "two rows write one slot in a step"
                written.add(place)
                self.slots[place] = stamps[position]
        for row, end, samples in zip(rows, ends, plan.samples.tolist(), strict=True):
            if samples:
                sampled.append(self._sample(row, end))
        for at, child in zip(plan.fork_from.tolist(), plan.fork_rows.tolist(), strict=True):
            self.tokens[child] = self.tokens[rows[at]][: ends[at]]
            sampled.append(self._sample(child, ends[at]))
        return sampled

    def start(self, transfer: Transfer) -> None:
        """A transfer begins; what it will write is garbage until `finish`."""
        if not transfer.out:
            self.slots[transfer.frames] = -2
        else:
            self.host[transfer.hosts] = -2

    def finish(self, transfer: Transfer, *, ok: bool) -> None:
        """A transfer ends: only now does it read and write."""
        if ok and transfer.out:
            self.host[transfer.hosts] = self.slots[transfer.frames]
        elif ok:
            self.slots[transfer.frames] = self.host[transfer.hosts]

    def _slot(self, row: int, position: int) -> int:
        return int(
            self.slots[self.mirror[row, position // self.block_size], position % self.block_size]
        )

    def _sample(self, row: int, position: int) -> int:
        _, request, index = self.names[row]
        token = (request * 7 + index * position + position // 3) % 3
        tokens = self.tokens[row]
        assert len(tokens) >= position, "a token is missing"
        del tokens[position:]
        tokens.append(token)
        return token

    def _stamps(self, row: int, end: int) -> list[int]:
        stamp: object = ("root", self.names[row][0])
        stamps = []
        assert len(self.tokens[row]) >= end, "an unknown token is computed"
        for token in self.tokens[row][:end]:
            key = (stamp, token)
            stamp = self._interned.setdefault(key, len(self._interned))
            stamps.append(stamp)
        return stamps
