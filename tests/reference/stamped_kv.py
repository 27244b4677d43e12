"""A KV pool in which every slot remembers who wrote which position, so that a read of foreign memory is seen."""

import numpy as np

from engine.core.plan import Plan


class StampedKV:
    """Executes plans on stamps (request, position) instead of tensors, through a mirror of the block tables."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[tuple[int, int] | None] = [None] * (num_blocks * block_size)
        self.mirror: dict[tuple[int, int], int] = {}

    def execute(self, plan: Plan) -> None:
        """Applies the deltas, checks every read, writes the stamps. Raises AssertionError on a foreign read."""
        for row, column, block in zip(
            plan.delta_rows.tolist(),
            plan.delta_cols.tolist(),
            plan.delta_blocks.tolist(),
            strict=True,
        ):
            self.mirror[row, column] = block
        written: set[int] = set()
        for row, request, start, count in zip(
            plan.rows.tolist(),
            plan.requests.tolist(),
            plan.starts.tolist(),
            plan.counts.tolist(),
            strict=True,
        ):
            assert count >= 1
            for position in range(start):
                assert self.slots[self._slot(row, position)] == (request, position)
            for position in range(start, start + count):
                slot = self._slot(row, position)
                assert slot not in written, "two rows write one slot in a step"
                written.add(slot)
                self.slots[slot] = (request, position)

    def _slot(self, row: int, position: int) -> int:
        block = self.mirror[row, position // self.block_size]
        return block * self.block_size + position % self.block_size


def results_for(plan: Plan, stops: dict[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, tokens, stops) of the plan's sampling rows; `stops` maps requests to a `Finish`."""
    rows = plan.rows[plan.samples]
    requests = plan.requests[plan.samples]
    tokens = ((requests * 31 + (plan.starts + plan.counts)[plan.samples]) % 1000).astype(np.int32)
    return rows, tokens, np.array([stops.get(r, 0) for r in requests.tolist()], np.int8)
