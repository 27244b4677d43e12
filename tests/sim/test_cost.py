"""The roofline: hand-computed values, monotonic in each input, and features that equal counting one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.plan import Plan
from sim.cost import StepWork, work_of
from sim.hardware import Hardware, find_hardware
from sim.models import ModelShape, find_model
from sim.roofline import Efficiency, Roofline

TOY_MODEL = ModelShape(
    name="toy",
    num_layers=2,
    hidden=100,
    num_heads=10,
    num_kv_heads=5,
    head_dim=10,
    intermediate=200,
    vocab=1000,
    max_context=4096,
)
"""Layer: 100·(100 + 2·50) + 100·100 + 3·100·200 = 90,000 weights. Head: 100,000. KV: 2·2·5·10·2 = 400 B a token."""
TOY_HARDWARE = Hardware(
    name="toy",
    memory_mib=1000,
    memory_gb_per_s=1.0,
    peak_tflops={"bf16": 0.001},
    source="hand",
    measured=True,
)
"""1 GFLOP/s and 1 GB/s, taken as reached: a nanosecond an operation and a nanosecond a byte."""
NO_LAUNCH = Efficiency(launch_us=0, step_us=0)


def toy(rates: Efficiency = NO_LAUNCH) -> Roofline:
    return Roofline(TOY_HARDWARE, TOY_MODEL, "bf16", "bf16", rates)


def test_a_decode_step_by_hand():
    work = StepWork(1, 1, 1, context_tokens=1000, attended=1000)
    weight_bytes = 2 * (2 * (90_000 + 200) + 100_000 + 100)
    linear_flops = 2 * 2 * 90_000 + 2 * 100_000
    kv_bytes = (1000 + 1) * 400
    attention_flops = 4 * 2 * 10 * 10 * 1000
    expected = max(linear_flops, weight_bytes) + max(attention_flops, kv_bytes)
    assert expected == 561_000 + 800_000
    assert toy().step_ns(work) == expected


def test_a_prefill_step_by_hand():
    work = StepWork(100, 1, 1, context_tokens=100, attended=5050)
    linear_flops = 100 * 2 * 2 * 90_000 + 2 * 100_000
    attention_flops = 4 * 2 * 10 * 10 * 5050
    assert toy().step_ns(work) == linear_flops + attention_flops


def test_launches_and_host_work_are_added():
    work = StepWork(1, 1, 1, 1000, 1000)
    rates = Efficiency(launch_us=3, launches_per_layer=5, step_us=7)
    assert toy(rates).step_ns(work) == toy().step_ns(work) + 2 * 5 * 3000 + 7000


def test_efficiency_divides_the_datasheet_peak_only():
    datasheet = Hardware(
        name="toy", memory_mib=1000, memory_gb_per_s=1.0, peak_tflops={"bf16": 0.001}, source="hand"
    )
    rates = Efficiency(
        linear_compute=0.5, attention_compute=0.25, memory=0.5, launch_us=0, step_us=0
    )
    model = Roofline(datasheet, TOY_MODEL, "bf16", "bf16", rates)
    prefill = StepWork(100, 1, 1, context_tokens=100, attended=5050)
    assert model.step_ns(prefill) == 36_200_000 * 2 + 4_040_000 * 4
    assert toy(rates).step_ns(prefill) == 36_200_000 + 4_040_000


works = st.builds(
    StepWork,
    st.integers(1, 8192),
    st.integers(0, 512),
    st.integers(1, 512),
    st.integers(1, 10**7),
    st.integers(1, 10**9),
)


@given(works, st.sampled_from(StepWork._fields), st.integers(1, 10**6))
def test_more_work_never_takes_less_time(work, field, more):
    cost = Roofline(find_hardware("A100-80"), find_model("Llama-3.1-8B"), "bf16", "bf16")
    bigger = work._replace(**{field: getattr(work, field) + more})
    assert cost.step_ns(bigger) >= cost.step_ns(work) >= 1


@given(works)
def test_faster_memory_and_arithmetic_never_take_more_time(work):
    model = find_model("Llama-3.1-8B")
    times = [
        Roofline(find_hardware(name), model, "bf16", "bf16").step_ns(work)
        for name in ("H200", "H100", "A100-80", "A100-40", "L4")
    ]
    assert times == sorted(times)


def plan_of(rows: list[tuple[int, int, bool]], num_decodes: int) -> Plan:
    starts, counts, samples = zip(*rows, strict=True)
    n = len(rows)
    empty = np.zeros(0, np.int32)
    return Plan(
        step=0,
        rows=np.arange(n, dtype=np.int32),
        requests=np.arange(n, dtype=np.int64),
        starts=np.array(starts, np.int32),
        counts=np.array(counts, np.int32),
        samples=np.array(samples, np.bool_),
        num_decodes=num_decodes,
        admitted=(),
        delta_rows=empty,
        delta_cols=empty,
        delta_blocks=empty,
    )


@given(
    st.lists(st.integers(1, 3000), max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 300), st.booleans()), max_size=4),
)
def test_features_equal_counting_position_by_position(decodes, chunks):
    rows = [(start, 1, True) for start in decodes] + chunks
    if not rows:
        return
    work = work_of(plan_of(rows, len(decodes)))
    positions = [range(start, start + count) for start, count, _ in rows]
    assert work.num_tokens == sum(len(r) for r in positions)
    assert work.num_samples == sum(sampled for *_, sampled in rows)
    assert work.num_sequences == len(rows)
    assert work.context_tokens == sum(r[-1] + 1 for r in positions)
    assert work.attended == sum(p + 1 for r in positions for p in r)


def test_long_contexts_do_not_overflow():
    work = work_of(plan_of([(2**31 - 2, 1, True)] * 3, 3))
    assert work.context_tokens == 3 * (2**31 - 1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8"])
def test_smaller_types_are_faster(dtype):
    cost = {
        kind: Roofline(find_hardware("H100"), find_model("Qwen3-32B"), kind, kind).step_ns(
            StepWork(32, 32, 32, 32_000, 32_000)
        )
        for kind in ("fp32", "bf16", "fp8")
    }
    assert cost["fp32"] > cost["bf16"] > cost["fp8"]


@given(
    st.integers(1, 300),
    st.integers(1, 2_000_000),
    st.integers(1, 300),
    st.sampled_from(["A100-80", "H200", "L4"]),
)
def test_a_leap_costs_what_its_steps_cost_one_by_one(sequences, context, steps, name):
    cost = Roofline(find_hardware(name), find_model("Qwen3-32B"), "fp8", "fp8")
    work = StepWork(sequences, sequences, sequences, context, context)
    one_by_one = [
        cost.step_ns(work._replace(context_tokens=c, attended=c))
        for c in range(context, context + steps * sequences, sequences)
    ]
    assert cost.leap_ns(work, steps).tolist() == one_by_one
