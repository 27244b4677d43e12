"""Small traces on which a plan has something to find."""

import json

import numpy as np
from msgspec.structs import replace as replaced

from sim.plan.desk import Desk
from sim.plan.planner import describe
from sim.plan.planner import plan as run
from sim.plan.question import Question, build_crowd
from sim.sweep.axes import BUILT_IN
from sim.sweep.cache import Cache
from sim.sweep.digest import file_digest
from sim.sweep.workers import Workers
from traces.slo import parse_slo


def write_bursts(path, seed=0, bursts=6, most=12):
    """An Azure CSV: every ten seconds a burst of requests at nearly one instant."""
    rng = np.random.default_rng(seed)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for burst in range(bursts):
        for place in range(int(rng.integers(1, most + 1))):
            second = burst * 10
            lines.append(
                f"2023-11-16 18:{second // 60:02}:{second % 60:02}.{place:03},"
                f"{rng.integers(200, 1500)},{rng.integers(1, 20)}"
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def write_sessions(path, sessions=5, turns=6, seed=0):
    """Agent sessions whose prompts grow, with a sub-agent in the first."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(sessions):
        requests, tokens, at = [], 640, 0.0
        for turn in range(turns):
            think = round(float(rng.uniform(1, 8)), 1) if turn else None
            at += think or 0
            requests.append(
                {
                    "t": at,
                    "type": "s",
                    "model": "m",
                    "in": tokens,
                    "out": 16,
                    "hash_ids": list(range(tokens // 64)),
                    "api_time": 1.0,
                    **({"think_time": think} if think is not None else {}),
                }
            )
            if number == 0 and turn == 2:
                inner = {"t": 0, "type": "s", "model": "m", "in": 128, "out": 4}
                inner |= {"hash_ids": [900, 901], "api_time": 1.0}
                requests.append(
                    {"t": at, "type": "subagent", "requests": [inner, inner | {"t": 2}]}
                )
            at += 1
            tokens += int(rng.integers(64, 640))
        lines.append(
            json.dumps(
                {
                    "id": f"s{number}",
                    "models": ["m"],
                    "block_size": 64,
                    "hash_id_scope": "local",
                    "requests": requests,
                }
            )
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def question(trace, slo, **changes):
    """A quick question about a trace; `changes` are fields of the question."""
    asked = Question(
        trace=trace,
        trace_sha256=file_digest(trace),
        slo=parse_slo(slo),
        settings={},
        files=BUILT_IN,
        strict=False,
        only_fitting=False,
        max_replicas=12,
        max_users=16,
        crowd=build_crowd(60.0, 0),
        window_s=10.0,
        seeds=0,
        with_sensitivity=False,
        with_autoscaling=False,
    )
    return replaced(asked, **changes)


def plan(asked, hardware=("L4",), prices=None, count=1, folder=None, users=False, watch=None):
    """The plan."""
    with Workers(count) as workers:
        desk = Desk(workers, Cache(folder), watch)
        found = describe(asked)
        return run(asked, list(hardware), prices or {}, desk, found, users=users)
