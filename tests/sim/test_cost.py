"""The roofline: hand-computed values, monotonic in each input, and features that equal counting one by one."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ConfigError
from engine.core.plan import Plan
from sim.cost import (
    StepWork,
    by_stretches,
    chunk_by_chunk,
    decode_work,
    prefill_work,
    work_of,
)
from sim.hardware import Hardware, find_hardware
from sim.models import ModelShape, find_model
from sim.pool import weight_bytes
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
BARE = Efficiency(
    ramp_tokens=0, attention_tile=0, unhidden=0, logit_bytes=0, kernel_cycles=0, eager_launch_us=0,
    step_us=0, host_step_us=0, host_sequence_us=0, host_block_us=0,
)  # fmt: skip
MOVED = 2 * 2 * (8 * 100 + 2 * (100 + 2 * 50) + 3 * 200) + 400
"""Bytes a token beside weights and context: two layers of 16-bit activations, and its KV."""


def toy(rates: Efficiency = BARE, **options) -> Roofline:
    return Roofline(TOY_HARDWARE, TOY_MODEL, "bf16", "bf16", rates, **options)


def with_rates(**rates: float) -> Efficiency:
    return msgspec.structs.replace(BARE, **rates)


def test_a_decode_step_by_hand():
    weight_bytes = 2 * (2 * (90_000 + 200) + 100_000 + 100)
    linear_flops = 2 * 2 * 90_000
    assert weight_bytes > linear_flops
    expected = weight_bytes + 2 * 100_000 + 1000 * max(400, 4 * 2 * 10 * 10) + MOVED
    assert toy().step_ns(decode_work(1, 1000)) == expected


def test_a_prefill_step_by_hand():
    work = prefill_work(100)
    assert (work.attended, work.num_samples) == (5050, 1)
    linear_flops = 100 * 2 * 2 * 90_000
    attention_flops = 4 * 2 * 10 * 10 * 5050
    expected = linear_flops + 2 * 100_000 + attention_flops + 100 * MOVED
    assert toy().step_ns(work) == expected


def test_decodes_and_chunks_of_one_step_add_up():
    """Neither hides behind the other: the decodes' KV is read beside the chunk's arithmetic."""
    mixed = StepWork(101, 2, 2, 1000 + 100, 1000 + 5050, 1, 100, 100, 5050)
    together = toy().step_ns(mixed) - toy().step_ns(prefill_work(100))
    assert together == 2 * 2 * 90_000 + 2 * 100_000 + 1000 * 800 + MOVED


def test_launches_and_the_gap_between_steps_are_added():
    work = decode_work(1, 1000)
    rates = with_rates(kernel_cycles=6000, launches_per_layer=5, step_us=7)
    assert toy(rates).step_ns(work) == toy().step_ns(work) + 2 * 5 * 3000 + 7000
    fast = msgspec.structs.replace(TOY_HARDWARE, clock_mhz=3000)
    faster = Roofline(fast, TOY_MODEL, "bf16", "bf16", rates).step_ns(work)
    assert faster == toy().step_ns(work) + 2 * 5 * 2000 + 7000


def test_experts_and_quantised_inputs_take_more_kernels():
    rates = with_rates(
        kernel_cycles=2000, launches_per_layer=5, quantise_launches=2, expert_launches=3
    )
    for model, dtype, more in ((TOY_MODEL, "fp8", 2), (TOY_MODEL, "int4", 0), (MOE, "bf16", 3)):
        bare, full = (
            Roofline(TOY_HARDWARE, model, dtype, "bf16", r).step_ns(decode_work(1, 1))
            for r in (BARE, rates)
        )
        assert full - bare == model.num_layers * (5 + more) * 1000


def test_of_arithmetic_and_reads_the_longer_hides_all_but_a_share_of_the_shorter():
    read, computed = 2 * (2 * (90_000 + 200) + 100_000 + 100), 2 * 2 * 90_000
    work = decode_work(1, 1000)
    assert toy(with_rates(unhidden=0.25)).step_ns(work) - toy().step_ns(work) == computed // 4
    prompt = prefill_work(100)
    more = toy(with_rates(unhidden=0.25)).step_ns(prompt) - toy().step_ns(prompt)
    assert more == read // 4


@pytest.mark.parametrize(
    ("watts", "slower"), [(None, 1.0), (0.001, 1.0), (0.008, 0.5), (0.0001, 10 ** (1 / 3))]
)
def test_the_fewer_watts_for_its_peak_the_less_of_it_a_card_reaches(watts, slower):
    """At a third, the clock goes as the cube root of the power that each operation gets."""
    rates = with_rates(
        linear_compute=1.0, attention_compute=1.0, memory=1.0, kv_memory=1.0, power_exponent=1 / 3
    )
    card = msgspec.structs.replace(TOY_HARDWARE, measured=False, watts=watts)
    few, many = (
        Roofline(card, TOY_MODEL, "bf16", "bf16", rates).step_ns(prefill_work(n))
        for n in (100, 1100)
    )
    plain = toy().step_ns(prefill_work(1100)) - toy().step_ns(prefill_work(100))
    moved = 1000 * MOVED
    assert many - few - moved == pytest.approx(slower * (plain - moved), rel=1e-6)


def test_a_step_with_chunks_takes_no_less_than_its_eager_launches():
    rates = with_rates(eager_launch_us=1e6, launches_per_layer=5)
    assert toy(rates).step_ns(prefill_work(1)) == 2 * 5 * 10**9
    assert toy(rates).step_ns(decode_work(1, 1)) == toy().step_ns(decode_work(1, 1))


def test_the_host_hides_behind_the_device_only_where_steps_are_planned_ahead():
    work = decode_work(3, 1000)
    device = toy().step_ns(work)
    short = with_rates(host_step_us=1, host_sequence_us=2, host_block_us=16)
    assert toy(short).step_ns(work) == device
    assert toy(short, overlap=False).step_ns(work) == device + 1000 + 3 * 2000 + 3 * 1000
    long = with_rates(host_step_us=1e6)
    assert toy(long).step_ns(work) == 10**9


def test_smaller_blocks_cost_the_host_more_and_the_device_what_the_table_says():
    rates = with_rates(host_block_us=100)
    work = prefill_work(1000)
    host = [toy(rates, block_size=size, overlap=False).step_ns(work) for size in (1, 4, 16)]
    assert host[0] - host[1] == 750 * 100_000
    assert host[1] - host[2] == round(187.5 * 100_000)
    kv_bound = msgspec.structs.replace(TOY_HARDWARE, peak_tflops={"bf16": 1.0})
    half = Roofline(kv_bound, TOY_MODEL, "bf16", "bf16", BARE, block_efficiency=0.5)
    whole = Roofline(kv_bound, TOY_MODEL, "bf16", "bf16", BARE)
    work = decode_work(1, 1000)
    assert half.step_ns(work) - whole.step_ns(work) == 1001 * 400


def test_efficiency_divides_the_datasheet_peak_only():
    datasheet = msgspec.structs.replace(TOY_HARDWARE, measured=False)
    rates = with_rates(linear_compute=0.5, attention_compute=0.25, memory=0.125, kv_memory=0.5)
    model = Roofline(datasheet, TOY_MODEL, "bf16", "bf16", rates)
    prefill = prefill_work(100)
    linear, attention = 100 * 2 * 2 * 90_000 + 2 * 100_000, 4 * 2 * 10 * 10 * 5050
    moved = 100 * ((MOVED - 400) * 8 + 400 * 2)
    assert model.step_ns(prefill) == linear * 2 + attention * 4 + moved
    assert toy(rates).step_ns(prefill) == linear + attention + 100 * MOVED


def test_the_ramp_halves_the_efficiency_of_as_many_tokens():
    rates = with_rates(ramp_tokens=100)
    extra = toy(rates).step_ns(prefill_work(100)) - toy().step_ns(prefill_work(100))
    assert extra == 100 * 2 * 2 * 90_000


# -- several devices, experts, types ---------------------------------------------------------------------------


def test_tensor_parallelism_shares_work_out_and_pays_for_collectives():
    linked = msgspec.structs.replace(TOY_HARDWARE, link="nvlink", link_gb_per_s=0.5)
    rates = with_rates(link=0.5, collective_us=4)
    work = prefill_work(100)
    one = Roofline(linked, TOY_MODEL, "bf16", "bf16", rates)
    two = Roofline(linked, TOY_MODEL, "bf16", "bf16", rates, tensor_parallel=2)
    whole = 2 * 2 * 8 * 100
    """Bytes a token of the residual stream, which each device keeps."""
    shared = one.step_ns(work) - 100 * whole
    sent = 2 * 2 * (2 * 1 / 2 * 100 * 2) / (0.5 * 0.5)
    assert two.step_ns(work) == shared / 2 + 100 * whole + 100 * sent + 2 * 2 * 4000


def test_pcie_answers_later_than_a_switched_link_and_reaches_a_share_of_its_own():
    rates = with_rates(collective_us=10, pcie_collective_us=30, link=1.0, pcie_link=0.5)
    times = []
    for link in ("nvlink", "pcie"):
        hardware = msgspec.structs.replace(TOY_HARDWARE, link=link, link_gb_per_s=1.0)
        cost = Roofline(hardware, TOY_MODEL, "bf16", "bf16", rates, tensor_parallel=2)
        times.append(cost.step_ns(decode_work(1, 1)))
    # Two devices send a token's bytes once, at 1 GB/s or at half of it.
    hidden = 2 * TOY_MODEL.hidden
    assert times[1] - times[0] == 4 * (30_000 - 10_000 + hidden)


def test_tensor_parallelism_without_a_link_is_refused():
    with pytest.raises(ConfigError, match="link_gb_per_s"):
        toy(tensor_parallel=2)


MOE = ModelShape(
    name="moe",
    num_layers=1,
    hidden=100,
    num_heads=10,
    num_kv_heads=10,
    head_dim=10,
    intermediate=50,
    vocab=1000,
    max_context=4096,
    num_experts=8,
    experts_per_token=2,
)
"""An expert: 3·100·50 = 15,000 weights. Shared: 100·(100 + 2·100) + 100·100 + 100·8 = 40,800."""


@pytest.mark.parametrize("tokens", [1, 2, 7, 64])
def test_experts_touched_are_what_random_choices_touch(tokens):
    rng = np.random.default_rng(tokens)
    draws = [
        len({e for _ in range(tokens) for e in rng.permutation(8)[:2].tolist()})
        for _ in range(2000)
    ]
    assert MOE.experts_touched(tokens) == pytest.approx(np.mean(draws), rel=0.02)


def test_a_step_reads_the_experts_that_it_touches_and_computes_those_chosen():
    cost = Roofline(TOY_HARDWARE, MOE, "bf16", "bf16", BARE)
    others = 2 * (40_800 + 100_000 + 100 + 200)
    moved = 2 * (10 * 100 + 2 * 100 + 2 * (100 + 2 * 100) + 3 * 2 * 50) + 400
    kv = 2 * 10 * 10 * 2
    one = others + 2 * 2 * 15_000 + 2 * 100_000 + 1000 * max(kv, 4 * 100) + moved
    assert kv == 400
    assert cost.step_ns(decode_work(1, 1000)) == one
    many = cost.step_ns(prefill_work(2000)) - cost.step_ns(prefill_work(1000))
    pairs = 2000 * 2001 // 2 - 1000 * 1001 // 2
    assert many == 1000 * (2 * 40_800 + 2 * 2 * 15_000 + moved) + pairs * 4 * 100


@pytest.mark.parametrize(("dtype", "matrix", "other"), [("fp8", 1, 2), ("int4", 0.51953125, 2)])
def test_quantised_weights_leave_embeddings_and_head_in_16_bits(dtype, matrix, other):
    times = {kind: toy_of(kind).step_ns(decode_work(1, 1)) for kind in ("bf16", dtype)}
    saved = 2 * 90_000 * (2 - matrix)
    assert times["bf16"] - times[dtype] == pytest.approx(saved, abs=1)
    assert weight_bytes(TOY_MODEL, dtype) == pytest.approx(
        2 * 90_000 * matrix + (TOY_MODEL.num_params - 180_000) * other, abs=1
    )


def toy_of(dtype: str) -> Roofline:
    hardware = msgspec.structs.replace(TOY_HARDWARE, peak_tflops={"bf16": 1.0})
    return Roofline(hardware, TOY_MODEL, dtype, "bf16", BARE)


# -- rules of any step -----------------------------------------------------------------------------------------


@st.composite
def works(draw) -> StepWork:
    """Any step: some sequences decode, some prompts have chunks."""
    contexts = draw(st.lists(st.integers(1, 100_000), max_size=4))
    chunks = draw(st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 4096)), max_size=3))
    work = decode_work(len(contexts), sum(contexts))
    for start, count in chunks:
        work = with_chunk(work, start, count, sampled=draw(st.booleans()))
    return work if contexts or chunks else decode_work(1, 1)


def with_chunk(work: StepWork, start: int, count: int, *, sampled: bool) -> StepWork:
    pairs = count * start + count * (count + 1) // 2
    more = (
        count, sampled, 1, start + count, pairs, 1, count, start + count, pairs
    )  # fmt: skip
    return StepWork(*(a + b for a, b in zip(work, more, strict=True)))


@given(works(), st.integers(1, 4096), st.sampled_from(["Llama-3.1-8B", "Qwen3-30B-A3B"]))
def test_more_work_never_takes_less_time(work, more, model):
    cost = Roofline(find_hardware("A100-80"), find_model(model), "bf16", "bf16")
    longer = work._replace(context_tokens=work.context_tokens + more, attended=work.attended + more)
    if work.num_sequences > work.num_chunks:
        assert cost.step_ns(longer) >= cost.step_ns(work)
    for bigger in (
        work._replace(num_samples=work.num_samples + more),
        with_chunk(work, 0, more, sampled=True),
        with_chunk(work, more, 1, sampled=False),
    ):
        assert cost.step_ns(bigger) >= cost.step_ns(work) >= 1


@given(works())
def test_faster_memory_and_arithmetic_never_take_more_time(work):
    model = find_model("Llama-3.1-8B")
    times = [
        Roofline(find_hardware(name), model, "bf16", "bf16").step_ns(work)
        for name in ("B200", "H200", "H100", "A100-80", "A100-40", "L4")
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
    chunked = positions[len(decodes) :]
    assert work.num_chunks == len(chunked)
    assert work.chunk_tokens == sum(len(r) for r in chunked)
    assert work.chunk_context == sum(r[-1] + 1 for r in chunked)
    assert work.chunk_attended == sum(p + 1 for r in chunked for p in r)


def test_long_contexts_do_not_overflow():
    work = work_of(plan_of([(2**31 - 2, 1, True)] * 3, 3))
    assert work.context_tokens == 3 * (2**31 - 1)


def test_smaller_types_are_faster():
    cost = {
        kind: Roofline(find_hardware("H100"), find_model("Qwen3-32B"), kind, kind).step_ns(
            decode_work(32, 32_000)
        )
        for kind in ("fp32", "bf16", "fp8")
    }
    assert cost["fp32"] > cost["bf16"] > cost["fp8"]


@given(
    st.integers(1, 300),
    st.integers(1, 2_000_000),
    st.integers(1, 300),
    st.sampled_from(["A100-80", "H200", "L4"]),
    st.booleans(),
    st.sampled_from(["Qwen3-32B", "Qwen3-30B-A3B", "SmolLM2-135M"]),
)
def test_a_leap_costs_what_its_steps_cost_one_by_one(
    sequences, context, steps, name, overlap, model
):
    cost = Roofline(find_hardware(name), find_model(model), "fp8", "fp8", overlap=overlap)
    work = decode_work(sequences, context)
    one_by_one = [
        cost.step_ns(work._replace(context_tokens=c, attended=c))
        for c in range(context, context + steps * sequences, sequences)
    ]
    assert cost.leap_ns(work, steps).tolist() == one_by_one


@given(
    st.integers(0, 300),
    st.integers(0, 3_000),
    st.integers(1, 4_096),
    st.integers(0, 200_000),
    st.integers(1, 200),
    st.sampled_from(["A100-80", "H200", "L4"]),
    st.booleans(),
    st.sampled_from(["Qwen3-32B", "Qwen3-30B-A3B", "SmolLM2-135M"]),
)
def test_a_leap_of_chunks_costs_what_its_steps_cost_one_by_one(
    decodes, each, chunk, start, steps, name, overlap, model
):
    cost = Roofline(find_hardware(name), find_model(model), "fp8", "fp8", overlap=overlap)
    context = decodes * (each + 1)
    read, attended = start + chunk, start * chunk + chunk * (chunk + 1) // 2
    work = StepWork(
        num_tokens=decodes + chunk,
        num_samples=decodes,
        num_sequences=decodes + 1,
        context_tokens=context + read,
        attended=context + attended,
        num_chunks=1,
        chunk_tokens=chunk,
        chunk_context=read,
        chunk_attended=attended,
    )
    times = cost.chunks_ns(work, steps).tolist()
    assert times == chunk_by_chunk(cost, work, steps).tolist()


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 90)), min_size=1, max_size=12),
    st.integers(1, 100_000),
    st.booleans(),
    st.sampled_from(["Qwen3-32B", "Qwen3-30B-A3B"]),
)
def test_steps_in_which_sequences_leave_cost_what_they_cost_one_by_one(
    stretches, context, overlap, model
):
    """Sizes fall from stretch to stretch, and those who leave take their contexts along."""
    cost = Roofline(find_hardware("H200"), find_model(model), "fp8", "fp8", overlap=overlap)
    sizes, contexts = [], []
    for left, steps in sorted(dict(stretches).items(), reverse=True):
        size = 1 + 3 * left
        for _ in range(steps):
            sizes.append(size)
            contexts.append(context)
            context += size
        context -= context // (size + 1)
    one_by_one = [cost.step_ns(decode_work(*step)) for step in zip(sizes, contexts, strict=True)]
    priced = cost.run_ns(np.array(sizes), np.array(contexts))
    assert priced.tolist() == one_by_one
    assert by_stretches(cost, np.array(sizes), np.array(contexts)).tolist() == one_by_one
