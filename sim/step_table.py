"""A cost model read from a table: step times on a grid of decodes, their mean context and prompt tokens, with straight lines between.

The file is CSV with the columns `decodes,decode_context,chunk_tokens,step_us` and a row for each point of the grid. Beyond the grid the last
two points go on, and a step never takes less than its nearest neighbour at the lower end. What a chunk attends to before itself is not a
column: a table says nothing of it.
"""

import csv
import io
import itertools
import math
from bisect import bisect_right
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.arrays import Floats
from sim.cost import StepWork, by_stretches, chunk_by_chunk, growing_context
from traces.checked import FileError, why_unread

COLUMNS: Final = ("decodes", "decode_context", "chunk_tokens", "step_us")


class StepTable(Struct, frozen=True, kw_only=True):
    """A full grid; times[i][j][k] belongs to decodes[i], context[j], chunk[k]."""

    file: str
    decodes: list[float]
    decode_context: list[float]
    """Mean of a decoding sequence."""
    chunk_tokens: list[float]
    step_us: list[list[list[float]]]


def load_step_table(path: Path) -> StepTable:
    """The table in `path`.

    Raises:
        FileError: it cannot be read, lacks a column, has a value that is not a number at least 0, a time of 0, a point twice, or a hole.
    """
    try:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")))
        if not rows.fieldnames or set(COLUMNS) - set(rows.fieldnames):
            raise FileError(f"the step table {path} needs the columns {','.join(COLUMNS)}")
        times: dict[tuple[float, ...], float] = {}
        for row in rows:
            *values, time = (_number(path, rows.line_num, name, row[name]) for name in COLUMNS)
            point = tuple(values)
            if time <= 0:
                raise FileError(f"{path}: line {rows.line_num}: step_us must be above 0")
            if point in times:
                raise FileError(f"{path}: line {rows.line_num}: this point stands there twice")
            times[point] = time
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"the step table {path} cannot be read: {why_unread(error)}") from None
    if not times:
        raise FileError(f"the step table {path} has no rows")
    axes = [sorted({point[axis] for point in times}) for axis in range(3)]
    for point in itertools.product(*axes):
        if point not in times:
            missing = ", ".join(f"{n} {v:g}" for n, v in zip(COLUMNS, point, strict=False))
            raise FileError(f"the step table {path} has a hole: no row for {missing}")
    decodes, context, chunk = axes
    return StepTable(
        file=path.name,
        decodes=decodes,
        decode_context=context,
        chunk_tokens=chunk,
        step_us=[[[times[d, c, t] for t in chunk] for c in context] for d in decodes],
    )


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise FileError(f"{path}: line {line}: {name} must be a number at least 0, not {text!r}")
    return value


class TableCost:
    """Prices steps by a table."""

    name = "table"

    def __init__(self, table: StepTable) -> None:
        """Takes the grid."""
        self._times: Floats = 1e3 * np.array(table.step_us)
        self._least = float(self._times.min())
        self._decodes = table.decodes
        self._context: Floats = np.array(table.decode_context)
        self._chunk = table.chunk_tokens

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds of one step."""
        context = np.array([work.context_tokens - work.chunk_context])
        return int(self._at(work, context)[0])

    def leap_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of each of `steps` steps, by the same arithmetic."""
        return self._at(work, growing_context(work, steps))

    def run_ns(self, sizes: NDArray[np.int64], contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `CostModel`."""
        return by_stretches(self, sizes, contexts)

    def chunks_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """See `CostModel`."""
        return chunk_by_chunk(self, work, steps)

    def _at(self, work: StepWork, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times at these total contexts of the decodes, [n]."""
        decodes = work.num_sequences - work.num_chunks
        at, share = _place(self._decodes, decodes)
        curves = _between(self._times, at, share)
        at, share = _place(self._chunk, work.chunk_tokens)
        curve: Floats = _between(np.moveaxis(curves, 1, 0), at, share)
        grid = self._context
        if len(grid) == 1:
            times: Floats = np.full(len(contexts), curve[0])
        else:
            mean = contexts / max(1, decodes)
            cell = np.clip(grid.searchsorted(mean, side="right") - 1, 0, len(grid) - 2)
            share_of = (mean - grid[cell]) / (grid[cell + 1] - grid[cell])
            times = curve[cell] + share_of * (curve[cell + 1] - curve[cell])
        whole: Floats = np.maximum(1.0, np.rint(np.maximum(times, self._least)))
        return whole.astype(np.int64)


def _place(axis: list[float], value: float) -> tuple[int, float]:
    """(cell of the axis, how far into it); beyond the ends a share below 0 or above 1."""
    if len(axis) == 1:
        return 0, 0.0
    cell = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    return cell, (value - axis[cell]) / (axis[cell + 1] - axis[cell])


def _between(values: Floats, at: int, share: float) -> Floats:
    """Along the first axis."""
    low: Floats = values[at]
    if len(values) == 1:
        return low
    between: Floats = low + share * (values[at + 1] - low)
    return between
