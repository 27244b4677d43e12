"""What the core costs: thread CPU time, medians, with the prefix cache and the decision log on, blocks of 16, a pool of 100,000.

Prints a table beside its targets; `--json FILE` writes one flat object. Decode steps go through `Scheduler` as a driver makes
them. Admission and release are given twice: the block manager's part, which is what other engines' block managers can be
compared with, and, by names with `_scheduler`, the whole calls: `submit` and `schedule`, and `abort`.
"""

import argparse
import gc
import json
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from engine.core.allocator import Grant
from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig, SwapCosts
from engine.core.content import TokenContent
from engine.core.ids import RequestId, TimeNs
from engine.core.memory import BlockManager
from engine.core.plan import Plan, Request, Results
from engine.core.scheduler import Scheduler

BLOCK, POOL, CONTEXT, PROMPT = 16, 100_000, 512, 4_096
NOW = TimeNs(0)
TARGETS = {
    "decode_step_us_64": 40,
    "decode_step_us_256": 70,
    "decode_step_us_1024": 200,
    "admit_miss_256_us": 80,
    "publish_256_us": 60,
    "admit_hit_256_us": 60,
    "release_256_us": 15,
}


def microseconds(call: Callable[[], object]) -> tuple[float, object]:
    start = time.thread_time_ns()
    answer = call()
    return (time.thread_time_ns() - start) / 1e3, answer


class Bench:
    """A scheduler and the smallest driver that it needs."""

    def __init__(self, num_blocks: int = POOL, host_blocks: int = 0, **limits: object) -> None:
        self.scheduler = Scheduler(
            CoreConfig(
                memory=MemoryConfig(
                    num_blocks=num_blocks, block_size=BLOCK, host_blocks=host_blocks, watermark=0.0
                ),
                scheduler=SchedulerConfig(
                    max_context=1 << 16, token_budget=1 << 20, max_batch=2_048, **limits
                ),
            )
        )
        self.rng = np.random.default_rng(1)
        self.next_id = 0

    def request(self, tokens: np.ndarray, max_tokens: int = 10_000) -> Request:
        """A request with known content and an id of its own."""
        self.next_id += 1
        content = TokenContent(tokens)
        return Request(RequestId(self.next_id), len(tokens), max_tokens, content=content)

    def prompt(self, length: int = PROMPT) -> np.ndarray:
        """Tokens that nobody has sent before."""
        return self.rng.integers(0, 50_000, length, dtype=np.int32)

    def results(self, plan: Plan) -> Results:
        """Random tokens for a plan."""
        rows = plan.sampling
        tokens = self.rng.integers(0, 50_000, len(rows), dtype=np.int32)
        return Results(rows, tokens, np.zeros(len(rows), np.int8))

    def admit(self, request: Request) -> Plan:
        """The calls that bring in one request."""
        self.scheduler.submit(request, NOW)
        plan = self.scheduler.schedule(NOW)
        assert isinstance(plan, Plan)
        return plan

    def decoding(self, num_rows: int) -> None:
        """`num_rows` requests with contexts of `CONTEXT` and a little more, so that they cross blocks at different steps."""
        for _ in range(num_rows):
            phase = int(self.rng.integers(0, BLOCK))
            self.scheduler.submit(self.request(self.prompt(CONTEXT + phase)), NOW)
        plan = self.scheduler.schedule(NOW)
        assert isinstance(plan, Plan)
        assert len(plan.rows) == num_rows
        self.scheduler.commit(plan, self.results(plan), NOW)
        self.scheduler.take_log()


def decode_steps(num_rows: int, steps: int) -> dict[str, float]:
    """One step of `num_rows` decodes; and what making their new blocks findable costs, at lookups and at the end."""
    bench = Bench()
    bench.decoding(num_rows)
    scheduler, memory = bench.scheduler, bench.scheduler.allocator
    book = scheduler._book
    times: list[float] = []
    findable: list[float] = []
    for _ in range(steps):
        took, plan = microseconds(lambda: scheduler.schedule(NOW))
        assert isinstance(plan, Plan)
        results = bench.results(plan)
        took += microseconds(partial(scheduler.commit, plan, results, NOW))[0]
        times.append(took)
        scheduler.take_log()
        # What each admission does first, whoever comes in.
        findable.append(microseconds(lambda: memory.computed(book.findable()))[0])
    # What a row's release does for the blocks that it generated.
    rows, computed = book.running(), book.computed()
    publish = [
        microseconds(partial(memory.publish, row, int(computed[row])))[0] for row in rows.tolist()
    ]
    mean, at_end = statistics.fmean(times), sum(publish) / steps
    return {
        f"decode_step_us_{num_rows}": statistics.median(times),
        f"decode_step_mean_us_{num_rows}": mean,
        f"decode_publish_at_end_us_{num_rows}": at_end,
        f"decode_publish_at_admission_us_{num_rows}": statistics.median(findable),
        f"decode_step_all_us_{num_rows}": mean + at_end + statistics.median(findable),
    }


def prompts(*, full: bool, rounds: int) -> dict[str, float]:
    """A prompt of 256 blocks comes in, is published, leaves, and comes in again; `full`: each new block evicts one.

    The plain names are the block manager's part: keys, lookup and allocation; making findable; giving back.
    """
    bench = Bench()
    scheduler, memory = bench.scheduler, bench.scheduler.allocator
    assert isinstance(memory, BlockManager)
    if full:
        while memory.pool.free:
            bench.admit(bench.request(bench.prompt(min(PROMPT, memory.pool.free * BLOCK))))
            abort_all(bench)
    times: dict[str, list[float]] = {}

    def took(name: str, call: Callable[[], object]) -> object:
        cost, answer = microseconds(call)
        times.setdefault(f"{name}_us", []).append(cost)
        return answer

    def admit(content: TokenContent) -> None:
        memory.open(0, content, "", PROMPT)
        assert memory.admit_group([(0, PROMPT)], 0, 0) is Grant.OK

    def release() -> None:
        memory.release(0)
        memory.close(0)

    for _ in range(rounds):
        content, evicted = TokenContent(bench.prompt()), memory.num_evicted
        took("admit_miss_256", partial(admit, content))
        # The last block of a repeated prompt is computed again, not merged, and so free when it leaves.
        assert memory.num_evicted - evicted >= (255 if full else 0)
        took("publish_256", partial(memory.publish, 0, PROMPT))
        took("release_256", release)
        took("admit_hit_256", partial(admit, content))
        assert memory.last_hits == 255
        release()
        memory.take_deltas()
        memory.take_evicted()
    for _ in range(rounds):
        tokens = bench.prompt()
        request = bench.request(tokens)
        plan = took("admit_miss_256_scheduler", partial(bench.admit, request))
        assert isinstance(plan, Plan)
        results = bench.results(plan)
        took("commit_256_scheduler", partial(scheduler.commit, plan, results, NOW))
        took("release_and_publish_256_scheduler", partial(scheduler.abort, request.id, NOW))
        again = bench.request(tokens)
        took("admit_hit_256_scheduler", partial(bench.admit, again))
        assert memory.last_hits == 255
        abort_all(bench)
    suffix = "_full" if full else ""
    return {f"{name}{suffix}": statistics.median(costs) for name, costs in times.items()}


def abort_all(bench: Bench) -> None:
    """Ends what runs and commits what is open."""
    book = bench.scheduler._book
    for plan in [entry.plan for entry in book.open]:
        bench.scheduler.commit(plan, bench.results(plan), NOW)
    for request_id in list(book.groups):
        bench.scheduler.abort(request_id, NOW)
    bench.scheduler.take_log()


def fork(rounds: int) -> dict[str, float]:
    """A second sequence shares a table of 256 blocks."""
    memory = Bench().scheduler.allocator
    tokens = TokenContent(np.zeros(PROMPT, np.int32))
    memory.open(0, tokens, "", PROMPT)
    memory.admit_group([(0, PROMPT)], 0, 0)
    times = []
    for _ in range(rounds):
        times.append(microseconds(lambda: memory.fork(0, 1, PROMPT))[0])
        memory.release(1)
        memory.close(1)
        memory.take_deltas()
    return {"fork_256_us": statistics.median(times)}


def swap_decision(rounds: int, num_rows: int = 1_024) -> dict[str, float]:
    """A step in which some of `num_rows` rows need frames that are not there: who gives way, both estimates, the way out."""
    times, plain = [], []
    for _ in range(rounds):
        costs = SwapCosts(block_bytes=1 << 20, link_bytes_per_s=2e10, prefill_tokens_per_s=1e4)
        bench = Bench(
            num_rows * 34, host_blocks=4_000, preemption="auto", swap_costs=costs, max_open_plans=1
        )
        bench.decoding(num_rows)
        scheduler = bench.scheduler
        while scheduler.num_swaps == 0:
            took, plan = microseconds(partial(scheduler.schedule, NOW))
            assert isinstance(plan, Plan)
            if scheduler.num_swaps:
                times.append((took - statistics.median(plain)) / scheduler.num_swaps)
            else:
                plain.append(took)
            scheduler.commit(plan, bench.results(plan), NOW)
    return {f"swap_decision_{num_rows}_us": statistics.median(times)}


def traced(build: Callable[[], object]) -> int:
    """Bytes of Python and NumPy objects that what `build` returns keeps alive."""
    gc.collect()
    tracemalloc.start()
    kept = build()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return held


def bytes_held() -> dict[str, float]:
    """Of a frame of the pool, of a row that decodes at a context of 512, and of a block in the cache."""

    def running(num_rows: int, *, known: bool) -> Bench:
        bench = Bench(num_rows * 34)
        for _ in range(num_rows):
            request = Request(RequestId(bench.next_id), CONTEXT, 10_000)
            if known:
                request = bench.request(bench.prompt(CONTEXT))
            bench.next_id += 1
            bench.scheduler.submit(request, NOW)
        plan = bench.scheduler.schedule(NOW)
        assert isinstance(plan, Plan)
        bench.scheduler.commit(plan, bench.results(plan), NOW)
        bench.scheduler.take_log()
        return bench

    def cached(num_prompts: int) -> Bench:
        bench = Bench(50 * 256)
        for _ in range(num_prompts):
            bench.admit(bench.request(bench.prompt()))
            abort_all(bench)
        return bench

    frame = (traced(lambda: Bench(2 * POOL)) - traced(lambda: Bench(POOL))) / POOL
    rows = [traced(lambda n=n: running(n, known=False)) for n in (512, 1_024)]
    known = [traced(lambda n=n: running(n, known=True)) for n in (512, 1_024)]
    blocks = [traced(lambda n=n: cached(n)) for n in (8, 48)]
    return {
        "bytes_per_frame": frame,
        "bytes_per_row": (rows[1] - rows[0]) / 512 - 34 * frame,
        "bytes_per_row_with_tokens": (known[1] - known[0]) / 512 - 34 * frame,
        "bytes_per_cached_block": (blocks[1] - blocks[0]) / (40 * 256),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    args = parser.parse_args()
    rounds, steps = (30, 96) if args.quick else (200, 480)

    gc.collect()
    gc.freeze()
    figures: dict[str, float] = {}
    for num_rows in (64, 256, 1_024):
        figures |= decode_steps(num_rows, steps)
    figures |= prompts(full=False, rounds=rounds)
    figures |= prompts(full=True, rounds=rounds)
    figures |= fork(rounds)
    figures |= swap_decision(5 if args.quick else 15)
    figures |= bytes_held()

    for name, value in figures.items():
        print(f"{name:44} {value:10.1f}   {target_of(name)}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def target_of(name: str) -> str:
    plain = name.removesuffix("_full")
    if plain not in TARGETS:
        return ""
    return f"target {TARGETS[plain] * (1 if name == plain else 1.5):g}"


if __name__ == "__main__":
    main()
