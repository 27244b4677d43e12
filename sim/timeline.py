"""Time-weighted means of a few integer series in constant memory. Knows nothing of what the series mean.

Bins of equal width from time 0; when they run out, pairs merge and the width doubles. Sums are integers, so merging loses nothing
and the total over all bins is exact. Intervals are kept in a buffer and enter the bins many at a time.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_BINS: Final = 512
FIRST_WIDTH_NS: Final = 1 << 20
BUFFERED: Final = 4096
_LARGEST: Final = 1 << 62

Ints = NDArray[np.int64]


class Timeline:
    """Integrals of `width` series over time, in at most `max_bins` bins.

    Intervals are added in time order and touch: each starts where the one before ended.
    """

    def __init__(
        self,
        width: int,
        max_bins: int = MAX_BINS,
        bin_ns: int = FIRST_WIDTH_NS,
        buffered: int = BUFFERED,
    ) -> None:
        """Starts at time 0 with an empty first bin.

        Args:
            width: Number of series.
            max_bins: Even, at least 2.
            bin_ns: Width of a bin at first.
            buffered: Intervals that wait to enter the bins.
        """
        self._width = width
        self._max_bins = max_bins
        self.bin_ns = bin_ns
        self.end_ns = 0
        """Where the last interval ended."""
        self._bins: list[list[int]] = []
        """Integrals by bin, then series."""
        self._binned_ns = 0
        """Up to here intervals are in the bins; the others are in the buffer."""
        self._buffer: Ints = np.zeros((buffered, 1 + width), np.int64)
        """Of each interval its end and its values."""
        self._size = 0

    def add(self, end_ns: int, values: tuple[int, ...]) -> None:
        """The series had these values from the end of the last interval to `end_ns`. Amortised O(1)."""
        if end_ns == self.end_ns:
            return
        at = self._size
        if at == len(self._buffer):
            self._flush()
            at = 0
        self._buffer[at] = (end_ns, *values)
        self._size = at + 1
        self.end_ns = end_ns

    def add_many(self, ends_ns: Ints, values: tuple[Ints | int, ...]) -> None:
        """Intervals that end at `ends_ns`, [n] ascending; of each series one value for all, or [n]."""
        first, total = 0, len(ends_ns)
        while first < total:
            if self._size == len(self._buffer):
                self._flush()
            at = self._size
            count = min(total - first, len(self._buffer) - at)
            part, place = slice(first, first + count), self._buffer[at : at + count]
            for i, value in enumerate((ends_ns, *values)):
                place[:, i] = value[part] if isinstance(value, np.ndarray) else value
            self._size = at + count
            first += count
        if total:
            self.end_ns = int(ends_ns[-1])

    def _flush(self) -> None:
        """Empties the buffer into the bins."""
        size, start = self._size, self._binned_ns
        if not size:
            return
        self._size = 0
        ends, values = self._buffer[:size, 0].copy(), self._buffer[:size, 1:]
        self._binned_ns = end = int(ends[-1])
        if end == start:
            return
        while end > self._max_bins * self.bin_ns:
            self._merge()
        starts = np.concatenate([[start], ends[:-1]])
        if int(values.max()) * (end - start) >= _LARGEST:
            self._put_slowly(starts.tolist(), ends.tolist(), values.tolist())
            return
        first, last = start // self.bin_ns, (end - 1) // self.bin_ns
        edges = np.append(np.arange(first + 1, last + 1) * self.bin_ns, end)
        integral = np.zeros((size + 1, self._width), np.int64)
        np.cumsum(values * (ends - starts)[:, None], axis=0, out=integral[1:])
        which = np.searchsorted(ends, edges)
        up_to = integral[which] + values[which] * (edges - starts[which])[:, None]
        sums = np.diff(up_to, axis=0, prepend=np.zeros((1, self._width), np.int64))
        self._reserve(last)
        for place, part in enumerate(sums.tolist(), start=first):
            self._bins[place] = [a + b for a, b in zip(self._bins[place], part, strict=True)]

    def _put_slowly(self, starts: list[int], ends: list[int], values: list[list[int]]) -> None:
        """As `_flush`, where products do not fit 64 bits."""
        for start, end, row in zip(starts, ends, values, strict=True):
            for place in range(start // self.bin_ns, (end - 1) // self.bin_ns + 1):
                self._reserve(place)
                low, high = place * self.bin_ns, (place + 1) * self.bin_ns
                length = min(end, high) - max(start, low)
                for i, value in enumerate(row):
                    self._bins[place][i] += value * length

    def _reserve(self, place: int) -> None:
        while len(self._bins) <= place:
            self._bins.append([0] * self._width)

    def _merge(self) -> None:
        old = self._bins
        if len(old) % 2:
            old.append([0] * self._width)
        self._bins = [
            [a + b for a, b in zip(old[i], old[i + 1], strict=True)] for i in range(0, len(old), 2)
        ]
        self.bin_ns *= 2

    def totals(self) -> list[int]:
        """Each series' integral over all time, value times nanoseconds; exact."""
        self._flush()
        return [sum(sums) for sums in zip(*self._bins, strict=True)] or [0] * self._width

    def means(self) -> tuple[Ints, NDArray[np.float64]]:
        """End of each bin in ns, [bins] int64, and each series' mean in it, [width, bins] float64.

        The last bin ends where the last interval did; with no time passed there are no bins.
        """
        self._flush()
        if not self._bins:
            return np.zeros(0, np.int64), np.zeros((self._width, 0))
        edges = np.arange(1, len(self._bins) + 1) * self.bin_ns
        edges[-1] = self.end_ns
        lengths = np.diff(edges, prepend=0)
        values = np.array(self._bins, np.float64).T
        return edges, values / lengths
