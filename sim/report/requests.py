"""Each request as a row: all of them as CSV, those worth reading on a page. Knows the ledger; knows no scheduler."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from sim.ledger import NEVER, Ledger, State
from traces.report import numbers
from traces.report.document import Column, Table
from traces.report.rows import worth_reading

HEADER: Final = (
    "request",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "state",
    "why",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
)
_STATES: Final = {
    State.OPEN: "unfinished",
    State.DONE: "done",
    State.REJECTED: "rejected",
    State.FAILED: "failed",
}


class Rows:
    """Columns by request, NaN where a request has no such time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.state = np.frombuffer(ledger.state, np.int8)
        arrival = np.frombuffer(ledger.arrival_ns, np.int64)
        first = np.frombuffer(ledger.first_token_ns, np.int64)
        last = np.frombuffer(ledger.end_ns, np.int64)
        self.arrival_s = arrival / 1e9
        self.prompt = np.frombuffer(ledger.num_prompt, np.int32)
        self.output = np.frombuffer(ledger.num_output, np.int32)
        done = self.state == State.DONE
        gaps = self.output - 1
        self.ttft = np.where(first != NEVER, (first - arrival) / 1e6, np.nan)
        self.e2e = np.where(done, (last - arrival) / 1e6, np.nan)
        self.tpot = np.where(done & (gaps > 0), (last - first) / np.maximum(gaps, 1) / 1e6, np.nan)

    def __len__(self) -> int:
        return len(self.state)

    def lines(self) -> Iterator[str]:
        """CSV, the header first; times in full, empty where there are none."""
        yield ",".join(HEADER)
        times = (self.ttft, self.tpot, self.e2e)
        for i in range(len(self)):
            state = State(int(self.state[i]))
            shown = ",".join("" if np.isnan(t[i]) else f"{t[i]:.6f}" for t in times)
            yield (
                f"{i},{self.arrival_s[i]:.9f},{self.prompt[i]},{self.output[i]},{_STATES[state]},"
                f"{self._ledger.why.get(i, '')},{shown}"
            )

    def table(self, csv_name: str) -> Table:
        """Those worth reading on a page; all are in `csv_name`."""
        chosen, note = worth_reading(
            self.state != State.DONE, (self.ttft, self.tpot, self.e2e), csv_name
        )
        rows = [self._row(i) for i in chosen.tolist()]
        columns = [
            Column(title="Request", help="Number in order of arrival, as in the block map"),
            Column(title="Arrival, s"),
            Column(title="Prompt", help="Tokens"),
            Column(title="Output", help="Tokens"),
            Column(title="TTFT, ms", help="Arrival to first token"),
            Column(title="TPOT, ms", help="Mean gap between tokens"),
            Column(title="End to end, ms", help="Arrival to last token"),
            Column(title="Ended", text=True),
        ]
        return Table(name="request-table", columns=columns, rows=rows, note=note, tools=True)

    def _row(self, i: int) -> list[str]:
        state = _STATES[State(int(self.state[i]))]
        why = self._ledger.why.get(i)
        times = [
            numbers.NONE if np.isnan(t[i]) else f"{t[i]:,.1f}"
            for t in (self.ttft, self.tpot, self.e2e)
        ]
        return [
            str(i), f"{self.arrival_s[i]:,.3f}", f"{self.prompt[i]:,}", f"{self.output[i]:,}", *times,
            f"{state}: {why}" if why else state,
        ]  # fmt: skip
