"""A replay's ledger as the times that promises are judged by."""

import numpy as np

from sim.ledger import Ledger, State
from traces.judge import Judge, Times


def judge_ledger(ledger: Ledger, now_ns: int, from_ns: int = 0) -> Judge:
    """Looks at a copy of the ledger. Requests that arrived before `from_ns` are not covered by any promise."""
    state = np.array(ledger.state, np.int8)
    times = Times(
        arrival_ns=np.array(ledger.arrival_ns, np.int64),
        first_ns=np.array(ledger.first_token_ns, np.int64),
        end_ns=np.array(ledger.end_ns, np.int64),
        num_output=np.array(ledger.num_output, np.int64),
        is_open=state == State.OPEN,
        is_lost=(state == State.REJECTED) | (state == State.FAILED),
    )
    return Judge(times, now_ns, from_ns)
