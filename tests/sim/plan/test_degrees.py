"""Over how many devices a plan spreads a replica: against trying every degree by itself."""

from tests.sim.plan.worlds import plan, question, write_bursts

COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def answers(trace, slo, hardware, degrees, **changes):
    """Devices by degree, where that degree has an answer."""
    found = {}
    for degree in degrees:
        asked = question(trace, slo, settings={"tensor_parallel": degree}, **changes)
        found[degree] = plan(asked, [hardware]).candidates[0].devices
    return {degree: devices for degree, devices in found.items() if devices is not None}


def test_a_model_that_does_not_fit_one_device_is_spread_over_several(tmp_path):
    bursts = write_bursts(tmp_path / "bursts.csv")
    result = plan(question(bursts, "e2e_p99=60s", settings={"model": "Qwen3-32B"}), ["L4"])
    [candidate] = result.candidates
    assert candidate.tensor_parallel == 4
    assert candidate.devices == 4 * (candidate.replicas or 0)
    assert "(4 x L4)" in result.findings[0]
    assert [one.tensor_parallel for one in candidate.narrower] == [1, 2]
    assert {one.reason.code for one in candidate.narrower if one.reason} == {"no_fit"}
    unfit = "too little memory for the model and a pool"
    assert f"Replicas of fewer devices: 1 x L4, {unfit}; 2 x L4, {unfit}." in result.findings


def test_replicas_are_spread_over_more_devices_where_fewer_do_in_all(tmp_path):
    """Two L4 read the weights in 32 of 36 ms, so they can batch little; four need half of that."""
    trace = tmp_path / "t.csv"
    rows = (f"2023-11-16 18:00:00.{n:03},300,60\n" for n in range(90))
    trace.write_text(COLUMNS + "".join(rows))
    slo = "tpot_p99=36ms"
    known = answers(trace, slo, "L4", (2, 4, 8), max_replicas=24)
    [best] = plan(question(trace, slo, max_replicas=24)).candidates
    assert best.devices == min(known.values()) < known.get(2, 10**6)
    assert best.tensor_parallel == min(d for d, count in known.items() if count == best.devices)
    by_degree = {one.tensor_parallel: one for one in best.narrower}
    assert by_degree[1].reason is not None
    assert by_degree[1].reason.code == "alone"
    assert 2 * (by_degree[2].replicas or 99) == known.get(2, 198)
    assert best.alone is not None
    assert (best.alone.tpot_ms.max or 99) < 30


def test_a_degree_that_takes_no_fewer_devices_does_not_end_the_search(tmp_path):
    """Every other prompt is long: of two or four replicas half get them all, five or one get some."""
    trace = tmp_path / "t.csv"
    rows = (f"2023-11-16 18:00:00.{n:03},{20 if n % 2 else 8000},2\n" for n in range(20))
    trace.write_text(COLUMNS + "".join(rows))
    known = answers(trace, "ttft_p99=2900ms", "A100-80", (1, 2, 4))
    assert known == {1: 5, 2: 6, 4: 4}
    result = plan(question(trace, "ttft_p99=2900ms"), ["A100-80"])
    [best] = result.candidates
    assert (best.tensor_parallel, best.devices) == (4, 4)
    assert (
        "Replicas of fewer devices: 1 x A100-80, 5 replicas would be needed; 2 x A100-80, 2 replicas are not enough."
        in result.findings
    )
    [single] = plan(
        question(trace, "ttft_p99=2900ms", settings={"tensor_parallel": 1}), ["A100-80"]
    ).candidates
    assert single.narrower == []
