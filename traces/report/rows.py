"""Which requests of very many are worth a row on a page."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traces.report import numbers

MOST_ROWS: Final = 1000
_SLOWEST: Final = 200


def worth_reading(
    lost: NDArray[np.bool_], times: Sequence[NDArray[np.float64]], csv_name: str
) -> tuple[NDArray[np.int64], str]:
    """Numbers of at most `MOST_ROWS` requests, ascending, and a sentence that says which.

    Args:
        lost: [requests] those that did not end well.
        times: [requests] each; NaN where there is none.
        csv_name: Where all requests are.
    """
    total = len(lost)
    if total <= MOST_ROWS:
        return np.arange(total), "The one request." if total == 1 else f"All {total:,} requests."
    chosen = set(np.flatnonzero(lost)[:_SLOWEST].tolist())
    for each in times:
        known = np.nan_to_num(each, nan=-1.0)
        chosen.update(np.argsort(-known, kind="stable")[:_SLOWEST].tolist())
    others = np.setdiff1d(np.arange(total), list(chosen))
    places = np.linspace(0, len(others) - 1, MOST_ROWS - len(chosen), dtype=np.int64)
    chosen.update(others[places].tolist())
    note = (
        f"{len(chosen):,} of {numbers.counted(total, 'request')}: up to {_SLOWEST} that did not end well, the {_SLOWEST} slowest by each time, and an even sample of "
        f"the others. All are in {csv_name}."
    )
    return np.array(sorted(chosen), np.int64), note
