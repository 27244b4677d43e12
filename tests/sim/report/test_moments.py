"""Block maps are of the moment that they name: as many frames are held as the replay counted."""

import pytest

from engine.core.frames import FrameState
from sim.config import build_config
from sim.replay import replay_in_full, resolve
from sim.report.moments import moments
from tests.conftest import DATA
from tests.sim.report.crowd import TIGHT, crowd
from traces.formats import open_trace
from traces.shaping import hash_block_tokens, shaped

SAMPLE = DATA / "azure_sample.csv"
RUN = 7


def replayed(path=SAMPLE, **settings):
    config = build_config(**settings)
    resolved = resolve(config)
    trace = open_trace(path)
    report, run = replay_in_full(trace, resolved)
    again = lambda: shaped(open_trace(path), config.shaping)  # noqa: E731
    block_tokens = hash_block_tokens(trace, config.shaping)
    return report, run, moments(report, run, resolved, again, block_tokens)


def held(moment) -> int:
    runs = moment.delta.runs
    rows = [runs[i : i + RUN] for i in range(0, len(runs), RUN)]
    return sum(
        count
        for _, count, state, *_ in rows
        if state in (FrameState.HELD, FrameState.SHARED, FrameState.MOVING)
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"open_plans": 1},
        {"replicas": 3},
        TIGHT,
        TIGHT | {"open_plans": 1},
        TIGHT | {"preemption": "swap", "host_gb": 2.0},
        {"system_tokens": 64, "num_sequences": 2},
    ],
)
def test_peak_map_holds_as_many_frames_as_the_peak(settings, tmp_path):
    path = crowd(tmp_path) if "num_blocks" in settings else SAMPLE
    report, _, maps = replayed(path, **settings)
    assert maps[0].title == "Peak"
    assert held(maps[0]) == report.memory.peak_blocks
    assert maps[0].delta.total == report.memory.pool_blocks
    assert maps[-1].title == "End"
    assert held(maps[-1]) == 0
    assert [m.title for m in maps[1:-1]] == ["First preemption"] * bool(report.batch.preemptions)
    assert sum(report.over_time.preemptions) == report.batch.preemptions


def test_tight_pool_preempts(tmp_path):
    report, _, maps = replayed(crowd(tmp_path), **TIGHT)
    assert report.batch.preemptions > 0
    assert report.batch.first_preemption_s <= report.throughput.simulated_s
    assert len(maps) == 3
