"""What became of each request: a row of integers for each, no object. Knows no scheduler and prints nothing.

submitted == done + rejected + failed + unfinished, at every moment.
"""

from array import array
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

NEVER: Final = -1


class State(IntEnum):
    """Where a request stands; all but `OPEN` are final."""

    OPEN = 0
    DONE = 1
    REJECTED = 2
    FAILED = 3
    """Ended by something other than its length: a failed step, an abort."""


class Latencies(NamedTuple):
    """Float64 milliseconds, in submission order."""

    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]
    e2e_ms: NDArray[np.float64]


class Ledger:
    """Times and lengths by request, numbered from 0 in submission order. Times are the server's, in ns; -1: never."""

    def __init__(self) -> None:
        self.arrival_ns = array("q")
        self.admitted_ns = array("q")
        """When it first got memory: the plan with its first positions was made."""
        self.first_token_ns = array("q")
        self.end_ns = array("q")
        self.num_prompt = array("i")
        self.num_output = array("i")
        self.state = array("b")
        self.rejections: dict[str, int] = {}
        """By reason, in order of first occurrence."""
        self.why: dict[int, str] = {}
        """Of each request that was rejected: its reason."""
        self.num_ended = 0
        """Requests in a final state."""

    def __len__(self) -> int:
        return len(self.state)

    def arrive(self, arrival_ns: int, num_prompt: int, num_output: int) -> int:
        """The number of the new request. Amortised O(1)."""
        self.arrival_ns.append(arrival_ns)
        self.admitted_ns.append(NEVER)
        self.first_token_ns.append(NEVER)
        self.end_ns.append(NEVER)
        self.num_prompt.append(num_prompt)
        self.num_output.append(num_output)
        self.state.append(State.OPEN)
        return len(self.state) - 1

    def reject(self, request: int, code: str, now: int) -> None:
        """The request was refused at submission."""
        self._end(request, State.REJECTED, now)
        self.why[request] = code
        self.rejections[code] = self.rejections.get(code, 0) + 1

    def admit(self, request: int, now: int) -> None:
        """The request got memory for the first time."""
        self.admitted_ns[request] = now

    def first_token(self, request: int, now: int) -> None:
        """The request has produced a token; only the first such call counts, recomputation gives no second."""
        if self.first_token_ns[request] == NEVER:
            self.first_token_ns[request] = now

    def end(self, request: int, now: int, *, done: bool) -> None:
        """The request has ended with a token at `now` (done), or for another reason."""
        self._end(request, State.DONE if done else State.FAILED, now)

    def _end(self, request: int, state: State, now: int) -> None:
        self.state[request] = state
        self.end_ns[request] = now
        self.num_ended += 1

    def count(self, state: State) -> int:
        """Requests in that state."""
        return int(np.count_nonzero(np.frombuffer(self.state, np.int8) == state))

    def latencies(self) -> Latencies:
        """Of the requests that are done.

        TPOT is (last token - first token) / (tokens - 1), so requests of one token have none.
        """
        done = np.frombuffer(self.state, np.int8) == State.DONE
        arrival = np.frombuffer(self.arrival_ns, np.int64)[done]
        first = np.frombuffer(self.first_token_ns, np.int64)[done]
        last = np.frombuffer(self.end_ns, np.int64)[done]
        gaps = np.frombuffer(self.num_output, np.int32)[done].astype(np.int64) - 1
        several = gaps > 0
        return Latencies(
            ttft_ms=(first - arrival) / 1e6,
            tpot_ms=(last - first)[several] / gaps[several] / 1e6,
            e2e_ms=(last - arrival) / 1e6,
        )

    def done_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prompt and output tokens of the requests that are done."""
        done = np.frombuffer(self.state, np.int8) == State.DONE
        prompts = np.frombuffer(self.num_prompt, np.int32)[done].astype(np.int64)
        return prompts, np.frombuffer(self.num_output, np.int32)[done].astype(np.int64)

    def done_prompt_tokens(self) -> int:
        """Prompt tokens of the requests that are done."""
        done = np.frombuffer(self.state, np.int8) == State.DONE
        return int(np.frombuffer(self.num_prompt, np.int32)[done].sum(dtype=np.int64))
