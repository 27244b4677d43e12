"""A KV pool in which every slot remembers what was written to it, so that a read of foreign memory is seen.

A stamp names a whole prefix: (stamp before it, token), interned, with a root for each salt or private request. Two slots
hold equal stamps only where equal tokens stand behind equal prefixes, so sharing is allowed exactly where it is sound.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

from engine.core.plan import Plan, Transfer

GARBAGE = -2


def stamped_token(request: int, index: int, position: int) -> int:
    """Few tokens, so that answers meet, and a different order of them in each sequence."""
    return (request * 7 + index * position + position // 3) % 3


class StampedKV:
    """Executes plans on stamps instead of tensors, through a mirror of the block tables, and samples by a fixed rule."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        host_blocks: int = 0,
        token: Callable[[int, int, int], int] = stamped_token,
    ) -> None:
        """`token(request, index, position)` is what a sequence samples."""
        self._token = token
        self.block_size = block_size
        self.slots = np.full((num_blocks, block_size), -1, np.int64)
        self.host = np.full((host_blocks, block_size), -1, np.int64)
        self.mirror: dict[tuple[int, int], int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.names: dict[int, tuple[object, int, int]] = {}
        self.tainted: set[tuple[int, int]] = set()
        """(step, row): it read what a failed step or an unfinished transfer left, so nothing of it may be accepted."""
        self.busy: Counter[int] = Counter()
        """Frames that transfers in flight read or write."""
        self.busy_hosts: set[int] = set()
        self._interned: dict[tuple[object, int], int] = {}

    def begin(
        self, row: int, root: object, request: int, index: int, prompt: Sequence[int]
    ) -> None:
        """`row` stands for sequence `index` of `request` from now on."""
        self.tokens[row] = list(prompt)
        self.names[row] = (root, request, index)

    def execute(self, plan: Plan) -> list[int]:
        """Applies deltas and copies, checks every read, writes, samples: a token for each of `plan.sampling`."""
        moved = {
            row: self.tokens[parent][:-1] + self.tokens[row][-1:]
            for row, parent in zip(plan.move_rows.tolist(), plan.move_parents.tolist(), strict=True)
        }
        self.tokens.update(moved)
        for row, column, block in zip(
            plan.delta_rows.tolist(),
            plan.delta_cols.tolist(),
            plan.delta_blocks.tolist(),
            strict=True,
        ):
            self.mirror[row, column] = block
        sources, targets = plan.copy_sources.tolist(), plan.copy_targets.tolist()
        # A device runs the copies of a plan at once, in any order.
        assert len({*sources, *targets}) == len(set(sources)) + len(targets), "copies collide"
        self.slots[targets] = self.slots[sources]
        written: set[tuple[int, int]] = set()
        sampled: list[int] = []
        rows = plan.rows.tolist()
        starts, ends = plan.starts.tolist(), (plan.starts + plan.counts).tolist()
        for row, start, end in zip(rows, starts, ends, strict=True):
            assert end > start
            stamps = self._stamps(row, end)
            read = [self._slot(row, position) for position in range(start)]
            if GARBAGE in read:
                stamps = [GARBAGE] * end
                self.tainted.add((plan.step, row))
            assert read == stamps[:start] or GARBAGE in read, "a foreign read"
            for position in range(start, end):
                block = self.mirror[row, position // self.block_size]
                place = (block, position % self.block_size)
                assert place not in written, "two rows write one slot in a step"
                assert block not in self.busy, (
                    "a step writes a frame that a transfer reads or writes"
                )
                written.add(place)
                self.slots[place] = stamps[position]
        for row, end, samples in zip(rows, ends, plan.samples.tolist(), strict=True):
            if samples:
                sampled.append(self._sample(row, end))
        for at, child in zip(plan.fork_from.tolist(), plan.fork_rows.tolist(), strict=True):
            self.tokens[child] = self.tokens[rows[at]][: ends[at]]
            if (plan.step, rows[at]) in self.tainted:
                self.tainted.add((plan.step, child))
            sampled.append(self._sample(child, ends[at]))
        return sampled

    def spoil(self, plan: Plan, rows: Collection[int]) -> None:
        """The step failed, or failed for `rows`: nobody knows what it wrote for them, nor what it copied."""
        for row, start, end in zip(
            plan.rows.tolist(),
            plan.starts.tolist(),
            (plan.starts + plan.counts).tolist(),
            strict=True,
        ):
            if row in rows:
                for position in range(start, end):
                    block = self.mirror[row, position // self.block_size]
                    self.slots[block, position % self.block_size] = GARBAGE
        if len(rows) == len(plan.rows):
            self.slots[plan.copy_targets] = GARBAGE

    def start(self, transfer: Transfer) -> None:
        """A transfer begins; what it will write is garbage until `finish`."""
        frames, hosts = set(transfer.frames.tolist()), set(transfer.hosts.tolist())
        assert len(frames) == len(hosts) == len(transfer.frames), "a block is moved twice"
        assert not hosts & self.busy_hosts, "two transfers on one host block"
        self.busy_hosts |= hosts
        if not transfer.out:
            assert not frames & self.busy.keys(), "two transfers on one frame"
            self.slots[transfer.frames] = GARBAGE
        else:
            self.host[transfer.hosts] = GARBAGE
        for frame in frames:
            self.busy[frame] += 1

    def finish(self, transfer: Transfer, *, ok: bool) -> None:
        """A transfer ends: only now does it read and write."""
        self.busy_hosts -= set(transfer.hosts.tolist())
        self.busy.subtract(transfer.frames.tolist())
        self.busy = +self.busy
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
        token = self._token(request, index, position)
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
