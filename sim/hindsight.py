"""Where the memory of a run went, now that it is known how long every sequence became. Prints nothing.

What a sequence holds is integrated from its admission to its end. In a contiguous run it is, from the inside out: token states; what
the sequence used later; what it never used; what the run is longer than was asked for.
"""

import numpy as np
from numpy.typing import NDArray

from sim.buddy import run_for
from sim.contiguous import Contiguous
from sim.ledger import NEVER
from sim.occupancy import Level as Totals
from sim.report.figures import Hindsight, Resolved
from sim.twin import Run


def totals_of(run: Run) -> Totals:
    """Integrals of every level over all replicas and all time, value times nanoseconds."""
    return Totals(*map(sum, zip(*(r.timeline.totals() for r in run.replicas), strict=True)))


def hindsight(run: Run, resolved: Resolved, totals: Totals) -> Hindsight:
    """Shares of the pool of all replicas; `totals` are the run's."""
    size = resolved.settings.block_size
    end_ns = run.replicas[0].timeline.end_ns
    pool = max(1, resolved.pool.num_blocks * size * len(run.replicas) * end_ns)
    held, used = totals.held_blocks * size, totals.used_tokens
    memory = run.replicas[0].scheduler.allocator
    if not isinstance(memory, Contiguous):
        return Hindsight(
            token_states=used / pool,
            reserved=None,
            internal=None,
            unused=(held - used) / pool,
            rounding=0.0,
            free=1 - held / pool,
        )
    prompts, outputs, held_ns = _holdings(run, end_ns)
    lengths = zip(prompts.tolist(), outputs.tolist(), strict=True)
    blocks = [
        -(-memory.reserved_for(prompt, prompt + output) // size) for prompt, output in lengths
    ]
    asked = sum(b * ns for b, ns in zip(blocks, held_ns.tolist(), strict=True)) * size
    given = sum(run_for(b) * ns for b, ns in zip(blocks, held_ns.tolist(), strict=True)) * size
    final = sum(((prompts + outputs - 1) * held_ns).tolist())
    return Hindsight(
        token_states=used / pool,
        reserved=(final - used) / pool,
        internal=(asked - final) / pool,
        unused=(asked - used) / pool,
        rounding=(given - asked) / pool,
        free=1 - given / pool,
    )


def _holdings(
    run: Run, end_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(prompt, output, nanoseconds that it held memory) of each request that was admitted."""
    ledger = run.ledger
    admitted = np.frombuffer(ledger.admitted_ns, np.int64)
    came = admitted != NEVER
    ended = np.frombuffer(ledger.end_ns, np.int64)[came]
    held_ns = np.where(ended == NEVER, end_ns, ended) - admitted[came]
    prompts = np.frombuffer(ledger.num_prompt, np.int32)[came].astype(np.int64)
    outputs = np.frombuffer(ledger.num_output, np.int32)[came].astype(np.int64)
    return prompts, outputs, held_ns
