"""A twin that leaps and one that takes every step by itself give the same records, whatever comes in between."""

import pickle
import random
from array import array

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.log import Preempted
from engine.core.scheduler import Scheduler
from sim.contiguous import Contiguous
from sim.cost import StepWork, chunk_by_chunk, decode_work
from sim.occupancy import Level, Occupancy
from sim.roofline import Roofline
from sim.router import LeastLoaded, PrefixAware, RoundRobin
from sim.twin import SwapPath, run_twin
from tests.sim.test_cost import TOY_HARDWARE, TOY_MODEL
from traces.schema import TraceRequest


class Uneven:
    """Steps of uneven length, some very short; a leap is priced step by step."""

    name = "uneven"

    def step_ns(self, work: StepWork) -> int:
        chunks = work.chunk_context + 3 * work.chunk_attended
        return 1 + work.num_tokens + (work.context_tokens * 7919 + work.attended + chunks) % 13

    def run_ns(self, sizes, contexts):
        steps = zip(sizes.tolist(), contexts.tolist(), strict=True)
        return np.array([self.step_ns(decode_work(n, context)) for n, context in steps])

    def chunks_ns(self, work, steps):
        return chunk_by_chunk(self, work, steps)


def random_rows(rng: random.Random) -> list[TraceRequest]:
    """Alone or in sessions, with shared prefixes, often at one instant."""
    rows: list[TraceRequest] = []
    now = line = 0
    for session in range(rng.randint(1, 20)):
        now += rng.choice([0, 0, 1, 30, 400])
        stem = rng.randint(0, 2) * 1000
        turns = rng.choice([1, 1, 3])
        for turn in range(turns):
            line += 1
            prompt = rng.randint(1, 60)
            known = [stem + i if i < 4 else 10_000 + 100 * line + i for i in range(-(-prompt // 8))]
            rows.append(
                TraceRequest(
                    line,
                    now,
                    prompt,
                    rng.choice([1, 2, 5, 40, 150]),
                    array("q", known) if rng.random() < 0.7 else array("q"),
                    session if turns > 1 else -1,
                    turn,
                    turn - 1 if turn else -1,
                    rng.choice([0, 0, 17, 900]),
                )
            )
    return rows


class Case:
    """A random fleet and what it is asked; the same for both twins."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rows = random_rows(rng)
        self.config = CoreConfig(
            memory=MemoryConfig(
                num_blocks=rng.choice([16, 24, 40, 200]),
                block_size=rng.choice([4, 8, 16]),
                watermark=rng.choice([0.0, 0.1]),
                prefix_cache=rng.random() < 0.7,
                host_blocks=rng.choice([0, 30]),
            ),
            scheduler=SchedulerConfig(
                max_context=400,
                token_budget=rng.choice([16, 64]),
                max_batch=rng.randint(2, 8),
                max_open_plans=rng.randint(1, 2),
                max_partial_prefills=rng.choice([None, 1]),
                policy=rng.choice(["fcfs", "fair"]),
                preemption=rng.choice(["recompute", "swap"]),
            ),
        )
        self.cost = rng.choice([Uneven(), Roofline(TOY_HARDWARE, TOY_MODEL, "bf16", "bf16")])
        self.replicas = rng.choice([1, 1, 2, 3])
        self.router = rng.choice([RoundRobin, LeastLoaded, PrefixAware])
        self.num_sequences = rng.choice([1, 1, 1, 2])
        self.until_ns = rng.choice([None, None, rng.randint(1, 20_000)])
        self.reservation = rng.choice([*[None] * 9, "max", "pow2", "oracle"])
        memory, limits = self.config.memory, self.config.scheduler
        batching = rng.choice([*["continuous"] * 9, "static"])
        if self.reservation is not None:
            self.num_sequences = 1
            memory = replace(memory, prefix_cache=False)
            limits = replace(limits, preemption="recompute")
        self.config = CoreConfig(memory=memory, scheduler=replace(limits, batching=batching))

    def scheduler(self) -> Scheduler:
        if self.reservation is None:
            return Scheduler(self.config)
        size = self.config.memory
        longest = size.block_size << (size.num_blocks.bit_length() - 1)
        runs = Contiguous(self.reservation, size.num_blocks, size.block_size, longest)
        return Scheduler(self.config, runs)

    def run(self, *, leaps: bool, on_start=None):
        schedulers = [self.scheduler() for _ in range(self.replicas)]
        ran = run_twin(
            self.rows,
            schedulers,
            self.cost,
            router=self.router(),
            num_sequences=self.num_sequences,
            hash_block_tokens=8,
            swap=SwapPath(block_bytes=100, bytes_per_s=1e9, replicas_per_link=2),
            until_ns=self.until_ns,
            leaps=leaps,
            on_start=on_start,
        )
        if self.until_ns is None:
            for scheduler in schedulers:
                scheduler.check_invariants()
        return ran


def records(ran):
    """Everything that a report is made of."""
    ledger = ran.ledger
    columns = {
        name: list(value) for name, value in vars(ledger).items() if isinstance(value, array)
    }
    replicas = []
    for replica in ran.replicas:
        ends, means = replica.timeline.means()
        replicas.append(
            {
                "totals": replica.timeline.totals(),
                "bins": (ends.tolist(), means.tolist()),
                "steps": replica.num_steps,
                "tokens": (replica.num_step_tokens, replica.num_output_tokens),
                "max": (replica.max_batch, replica.max_held_blocks),
                "hits": replica.scheduler.prefix_hits_tokens,
                "preemptions": replica.scheduler.num_preemptions,
                "swaps": replica.scheduler.num_swaps,
            }
        )
    busy = [link.busy_ns for link in ran.links]
    return columns, ledger.rejections, ran.num_held_back, busy, replicas


@pytest.mark.parametrize("seed", range(150))
def test_leaping_changes_no_record(seed):
    case = Case(seed)
    leaping, single = case.run(leaps=True), case.run(leaps=False)
    assert records(leaping) == records(single)
    if case.until_ns is None:
        for mine, other in zip(leaping.replicas, single.replicas, strict=True):
            assert mine.scheduler.log == other.scheduler.log
            assert msgspec.to_builtins(mine.scheduler.memory()) == msgspec.to_builtins(
                other.scheduler.memory()
            )


@settings(max_examples=30, deadline=None)
@given(st.integers(1_000, 1 << 40), st.lists(st.integers(0, 6_000), max_size=6))
def test_leaping_changes_no_record_and_no_frame_whoever_looks_in_between(seed, moments):
    """To look takes a replica out of its leap, in mid-step and at the instants at which steps end."""
    case = Case(seed)
    if case.reservation is not None:
        moments = []  # Only paged memory has frames.
    seen: dict[bool, list] = {True: [], False: []}
    ran = []
    for leaps in (True, False):

        def on_start(fleet, frames=seen[leaps]):
            for at, moment in enumerate(sorted(moments)):
                replica = fleet.replicas[at % len(fleet.replicas)]
                replica.look(moment, lambda found: frames.append(pickle.dumps(found)))

        ran.append(case.run(leaps=leaps, on_start=on_start))
    assert records(ran[0]) == records(ran[1])
    assert seen[True] == seen[False]


def test_the_cases_leap_share_and_preempt():
    steps = plans = hits = preempted = swaps = 0
    for seed in range(100):
        for replica in Case(seed).run(leaps=True).replicas:
            steps += replica.num_steps
            plans += replica.num_plans
            hits += replica.scheduler.prefix_hits_tokens
            swaps += replica.scheduler.num_swaps
            preempted += sum(isinstance(r, Preempted) for r in replica.scheduler.log)
    assert plans < 0.6 * steps
    assert hits > 1000
    assert preempted > 50
    assert swaps > 20


@pytest.mark.parametrize("seed", range(100))
def test_levels_from_counters_are_those_of_the_memory_report(seed, monkeypatch):
    checked = []

    def level(occupancy, busy):
        counted = cheap(occupancy, busy)
        memory = occupancy._scheduler.memory()
        assert counted == Level(
            memory.held_blocks,
            memory.cached_blocks,
            memory.used_tokens,
            memory.num_running,
            memory.num_waiting,
            busy,
        )
        checked.append(counted)
        return counted

    cheap = Occupancy.level
    monkeypatch.setattr(Occupancy, "level", level)
    Case(seed).run(leaps=False)
    assert checked
