"""Time-weighted means of a few integer series in constant memory. Knows nothing of what the series mean.

Bins of equal width from time 0; when they run out, pairs merge and the width doubles. Sums are integers, so merging loses nothing
and the total over all bins is exact.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_BINS: Final = 512
FIRST_WIDTH_NS: Final = 1 << 20


class Timeline:
    """Integrals of `width` series over time, in at most `max_bins` bins.

    Intervals are added in time order and touch: each starts where the one before ended.
    """

    def __init__(self, width: int, max_bins: int = MAX_BINS, bin_ns: int = FIRST_WIDTH_NS) -> None:
        """Starts at time 0 with an empty first bin.

        Args:
            width: Number of series.
            max_bins: Even, at least 2.
            bin_ns: Width of a bin at first.
        """
        self._width = width
        self._max_bins = max_bins
        self.bin_ns = bin_ns
        self.end_ns = 0
        """Where the last interval ended."""
        self._closed: list[list[int]] = []
        self._open = [0] * width
        self._open_end = bin_ns

    def add(self, end_ns: int, values: tuple[int, ...]) -> None:
        """The series had these values from the end of the last interval to `end_ns`. O(1) but for bins it passes."""
        start = self.end_ns
        while end_ns > self._open_end:
            self._accumulate(self._open_end - start, values)
            start = self._open_end
            self._next_bin()
        self._accumulate(end_ns - start, values)
        self.end_ns = end_ns

    def _accumulate(self, length_ns: int, values: tuple[int, ...]) -> None:
        if length_ns:
            sums = self._open
            for i, value in enumerate(values):
                if value:
                    sums[i] += value * length_ns

    def _next_bin(self) -> None:
        self._closed.append(self._open)
        if len(self._closed) == self._max_bins:
            old = self._closed
            self._closed = [
                [a + b for a, b in zip(old[i], old[i + 1], strict=True)]
                for i in range(0, self._max_bins, 2)
            ]
            self.bin_ns *= 2
        self._open = [0] * self._width
        self._open_end = (len(self._closed) + 1) * self.bin_ns

    def totals(self) -> list[int]:
        """Each series' integral over all time, value times nanoseconds; exact."""
        return [sum(sums) for sums in zip(*self._closed, self._open, strict=True)]

    def means(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """End of each bin in ns, [bins] int64, and each series' mean in it, [width, bins] float64.

        The last bin ends where the last interval did; with no time passed there are no bins.
        """
        if self.end_ns == 0:
            return np.zeros(0, np.int64), np.zeros((self._width, 0))
        ends = [(i + 1) * self.bin_ns for i in range(len(self._closed))]
        sums = list(self._closed)
        if self.end_ns > len(self._closed) * self.bin_ns:
            ends.append(self.end_ns)
            sums.append(self._open)
        edges = np.array(ends, np.int64)
        lengths = np.diff(edges, prepend=0)
        values = np.array([[s[i] for s in sums] for i in range(self._width)], np.float64)
        return edges, values / lengths
