"""A replay's memory is bounded whatever the trace's length, and its JSON is the same bytes whatever seeds Python's hashes."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

REPLAY = """
import json, random, resource, sys
from array import array
from engine.core.ids import TimeNs
from sim.config import build_config
from sim.replay import replay, resolve
from traces.figures import encode_figures
from traces.formats import read_trace

def rows(count):
    rng, now = random.Random(7), 0.0
    yield b"TIMESTAMP,ContextTokens,GeneratedTokens\\n"
    for _ in range(count):
        now += rng.expovariate(60.0)
        stamp = f"2023-11-{16 + int(now // 86400):02} {int(now // 3600) % 24:02}:{int(now // 60) % 60:02}:{now % 60:010.7f}"
        yield f"{stamp},{rng.randint(20, 200)},{rng.randint(1, 20)}\\n".encode()

report = replay(read_trace(rows(int(sys.argv[1])), "made.csv"), resolve(build_config()))
assert report.requests.done == int(sys.argv[1])
print(json.dumps([report.throughput.steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def peak_kib(count):
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(count)], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    steps, peak = json.loads(done.stdout)
    assert steps > count / 10
    return peak


@pytest.mark.slow
def test_a_hundred_thousand_requests_take_a_few_megabytes_more_than_a_thousand():
    """What grows is a row of integers for each request: under 100 bytes, and twice that while percentiles are taken."""
    assert peak_kib(100_000) - peak_kib(1_000) < 30_000


AXES = """
from pathlib import Path
from sim.config import build_config
from sim.replay import replay, resolve
from traces.figures import encode_figures
from traces.formats import open_trace

for settings in (
    {"num_blocks": 2000, "policy": "fair"},
    {"replicas": 3, "router": "prefix-aware", "num_sequences": 2},
    {"beam_width": 3, "limit": 3},
    {"allocator": "pow2", "batching": "static"},
):
    trace = open_trace(Path("tests/data/mooncake_sample.jsonl"))
    print(encode_figures(replay(trace, resolve(build_config(**settings)))))
"""


def test_every_axis_gives_the_same_bytes_whatever_the_hash_seed():
    written = [
        subprocess.run(
            [sys.executable, "-c", AXES],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert written[0]
    assert written[0] == written[1]
