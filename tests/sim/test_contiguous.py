"""Contiguous baselines, static batches and beams under the engine's scheduler: what they hold, and what paging saves beside them."""

import random

import numpy as np
import pytest

from engine.core.errors import ConfigError
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Plan, Request, Results
from engine.core.scheduler import Scheduler
from sim.config import build_config
from sim.contiguous import Contiguous
from sim.hindsight import totals_of
from sim.pricing import make_cost
from sim.replay import core_config, replay_in_full, resolve
from traces.figures import encode_figures
from traces.formats import read_trace

SETTINGS = {"num_blocks": 6000, "block_size": 1, "max_context": 1024, "watermark": 0.0}


def rows(count, seed=0):
    rng = random.Random(seed)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number in range(count):
        prompt, output = rng.randint(1, 300), int(rng.expovariate(1 / 150)) + 1
        lines.append(f"2023-11-16 18:{number // 600:02}:{number / 10 % 60:04.1f},{prompt},{output}")
    return "\n".join(lines)


def run(count=300, **settings):
    trace = read_trace(iter([rows(count).encode()]), "made.csv")
    return replay_in_full(trace, resolve(build_config(**(SETTINGS | settings))))


@pytest.fixture(scope="module")
def runs():
    return {name: run(allocator=name, until_s=25.0) for name in ("max", "pow2", "oracle", "paged")}


@pytest.mark.parametrize("allocator", ["max", "pow2", "oracle"])
def test_what_the_levels_held_is_what_the_runs_of_the_requests_add_up_to(runs, allocator):
    """The split in hindsight is computed from each request's times; the levels were counted step by step."""
    report, ran = runs[allocator]
    pool = report.memory.pool_tokens * ran.replicas[0].timeline.end_ns
    part = report.memory.hindsight
    assert 1 - part.free == pytest.approx(totals_of(ran).held_blocks / pool, rel=1e-12)
    shares = (part.token_states, part.reserved, part.internal, part.rounding, part.free)
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= 0
    assert part.unused == pytest.approx(part.reserved + part.internal)
    assert (part.internal == 0) == (allocator == "oracle")


def test_the_more_is_known_the_more_of_memory_is_token_states(runs):
    shares = [report.memory.hindsight.token_states for report, _ in runs.values()]
    assert shares == sorted(shares)
    assert shares[3] > 1.5 * shares[2]


@pytest.mark.parametrize("allocator", ["max", "pow2", "oracle"])
def test_everyone_is_served_and_all_memory_comes_back(allocator):
    report, ran = run(100, allocator=allocator)
    assert report.requests.done == 100
    assert report.batch.preemptions == 0
    memory = ran.replicas[0].scheduler.allocator
    assert isinstance(memory, Contiguous)
    memory.check_invariants()
    assert memory.free_blocks == 6000


def test_the_longest_run_of_an_empty_arena_decides_what_can_ever_be_served():
    memory = Contiguous("oracle", 6000, 1, 8192)
    assert memory.could_hold(100, 4096, 1)
    assert not memory.could_hold(100, 4097, 1)
    assert not memory.could_hold(100, 200, 2)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"allocator": "max", "num_sequences": 2}, "--n"),
        ({"allocator": "pow2", "beam_width": 2}, "--beam-width"),
        ({"allocator": "oracle", "preemption": "swap", "host_gb": 1.0}, "--preemption"),
        ({"num_sequences": 2, "beam_width": 2}, "not both"),
        ({"beam_width": 300}, "--max-batch"),
        ({"allocator": "slab"}, "--allocator"),
        ({"batching": "dynamic"}, "--batching"),
    ],
)
def test_what_cannot_go_together_is_refused_and_the_flag_is_named(settings, flag):
    with pytest.raises(ConfigError, match=flag):
        build_config(**settings)


def test_a_static_batch_lets_nobody_in_until_its_last_sequence_has_ended():
    resolved = resolve(build_config(**(SETTINGS | {"batching": "static", "open_plans": 1})))
    scheduler = Scheduler(core_config(resolved, make_cost(resolved)))
    came = []
    scheduler.submit(Request(RequestId(0), 10, 3), TimeNs(0))
    scheduler.submit(Request(RequestId(1), 10, 9), TimeNs(0))
    for step in range(30):
        if step == 2:
            scheduler.submit(Request(RequestId(2), 10, 5), TimeNs(step))
            scheduler.submit(Request(RequestId(3), 10, 2), TimeNs(step))
        plan = scheduler.schedule(TimeNs(step))
        if not isinstance(plan, Plan):
            break
        came += [(request, plan.step) for request, _, _ in plan.admitted]
        size = len(plan.sampling)
        results = Results(plan.sampling, np.zeros(size, np.int32), np.zeros(size, np.int8))
        scheduler.commit(plan, results, TimeNs(step))
    assert came == [(0, 0), (1, 0), (2, 9), (3, 9)]


def test_continuous_batches_finish_sooner_than_static_ones():
    static, continuous = (
        run(200, batching=batching, num_blocks=60_000)[0].throughput.simulated_s
        for batching in ("static", "continuous")
    )
    assert static > 1.2 * continuous


def test_a_beam_holds_less_than_as_many_samples_and_is_drawn_from_the_seed():
    beam, again, other, samples = (
        run(8, num_blocks=60_000, block_size=16, **settings)[0]
        for settings in (
            {"beam_width": 4},
            {"beam_width": 4},
            {"beam_width": 4, "seed": 1},
            {"num_sequences": 4},
        )
    )
    assert beam.requests.done == 8
    assert encode_figures(beam) == encode_figures(again)
    assert beam.memory.mean_used_tokens != other.memory.mean_used_tokens
    assert beam.memory.mean_used_tokens < 0.6 * samples.memory.mean_used_tokens


def test_the_tail_of_paged_sequences_is_about_half_a_block():
    report, _ = run(300, block_size=32, num_blocks=4000, open_plans=1)
    tail = report.memory.unused_tokens_per_sequence
    assert report.memory.half_block_tokens == 16
    assert 12 < tail < 24
