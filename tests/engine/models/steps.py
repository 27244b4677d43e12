"""Steps made by hand, for decoders without a runner."""

from collections.abc import Sequence

import numpy as np
import torch

from engine.models.step import Step, slot_mapping


def prefill_step(
    ids: Sequence[int], sampled: Sequence[int], start: int = 0, block_size: int = 16
) -> Step:
    """Positions `start` on of one sequence, whose blocks are 0, 1, 2, ..."""
    positions = np.arange(start, start + len(ids))
    tables = np.arange(positions[-1] // block_size + 1, dtype=np.int32)[None]
    return Step(
        ids=torch.tensor(ids),
        positions=positions,
        slots=slot_mapping(tables, np.zeros(len(ids), np.int32), positions, block_size),
        rows=np.zeros(1, np.int32),
        starts=np.array([start], np.int32),
        counts=np.array([len(ids)], np.int32),
        offsets=np.zeros(1, np.int64),
        num_decodes=0,
        tables=tables,
        sampled=torch.tensor(sampled),
    )
