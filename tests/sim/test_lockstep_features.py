"""The identity, feature by feature: each shows up in what was recorded, is repeated, and is told apart where it was changed.

A desk is driven with results that no model gave: tokens, ends and the parents of beams are drawn.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import Struct

from engine.core.content import TokenContent
from engine.core.ids import RequestId
from engine.core.journal import Abort
from engine.core.log import (
    Admitted,
    Copied,
    Ended,
    Evicted,
    Forked,
    Preempted,
    Record,
    Reparented,
    SwapEnded,
    SwapStarted,
)
from engine.core.plan import Finish, Request, Results, StepFailed
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from sim.lockstep import replay_lockstep
from tests.engine.toy import core_config
from tests.sim.test_lockstep import edited, first
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter

PREFIXES = ([], [3] * 8, [3] * 12, [4] * 8)


class Mix(Struct, frozen=True):
    """What is asked for, and how tight the pool is."""

    widths: tuple[int, ...] = (1,)
    beams: bool = False
    aborts: float = 0.0
    failures: float = 0.0
    num_blocks: int = 24
    host_blocks: int = 0
    preemption: str = "recompute"
    policy: str = "fcfs"


class Drive:
    """The live loop's discipline without its tasks and without a model."""

    def __init__(self, path: Path, mix: Mix, seed: int, max_open_plans: int) -> None:
        config = core_config(
            num_blocks=mix.num_blocks,
            host_blocks=mix.host_blocks,
            preemption=mix.preemption,
            policy=mix.policy,
            max_open_plans=max_open_plans,
            max_context=48,
            token_budget=32,
            max_batch=8,
        )
        self._mix = mix
        self._rng = random.Random(seed)
        self._now = 0
        self._writer = RecordingWriter(path, config=config, model="none")
        self._desk = Desk(Scheduler(config), lambda: self._now, self._writer)
        self._beam: dict[int, bool] = {}
        self._rows: dict[int, int] = {}
        """Row to request."""
        self._transfers: list[int] = []
        self._wanted = False

    def run(self, num_requests: int) -> None:
        while len(self._beam) < num_requests or self._busy:
            self._now += self._rng.randrange(1, 60)
            roll = self._rng.random()
            if roll < 0.25 and len(self._beam) < num_requests:
                self._submit()
            elif roll < 0.25 + self._mix.aborts:
                self._desk.abort(RequestId(self._rng.randrange(len(self._beam) + 1)))
                self._wanted |= self._desk.can_plan
            elif roll < 0.6 and self._transfers:
                self._move()
            elif roll < 0.7 and self._wanted and self._desk.can_plan:
                self._wanted = False
                self._opened(self._desk.plan())
            elif self._desk.open_plans:
                self._step()
        self._writer.close()

    @property
    def _busy(self) -> bool:
        return bool(self._wanted or self._desk.open_plans or self._transfers)

    def _submit(self) -> None:
        rng, number = self._rng, len(self._beam)
        prompt = [*rng.choice(PREFIXES), *(rng.randrange(2) for _ in range(rng.randint(1, 6)))]
        width = rng.choice(self._mix.widths)
        self._beam[number] = self._mix.beams and width > 1
        request = Request(
            RequestId(number),
            len(prompt),
            rng.randint(1, 24),
            width,
            TokenContent(np.array(prompt, np.int32)),
            tenant=rng.choice(["left", "right"]),
            priority=rng.randrange(2),
            beam=self._beam[number],
        )
        self._desk.submit(request)
        self._wanted |= self._desk.can_plan

    def _move(self) -> None:
        number = self._transfers.pop(self._rng.randrange(len(self._transfers)))
        ok = self._rng.random() >= self._mix.failures
        self._desk.transfer_done(number, self._now - 1, self._now, ok=ok)
        self._wanted |= self._desk.can_plan

    def _step(self) -> None:
        rng, rows = self._rng, self._desk.open_plans[0].sampling
        of = [self._rows[row] for row in rows.tolist()]
        results: Results | StepFailed
        if rng.random() < self._mix.failures / 10:
            results = StepFailed("hiccup")
        else:
            tokens = np.array([rng.randrange(2) for _ in of], np.int32)
            stops = np.array([Finish.STOP if rng.random() < 0.02 else 0 for _ in of], np.int8)
            stops[[self._beam[request] for request in of]] = 0
            if self._mix.failures:
                stops[self._failing(of)] = Finish.FAILED
            parents = rows.copy()
            for at, request in enumerate(of):
                if self._beam[request]:
                    parents[at] = rng.choice(rows[np.array(of) == request].tolist())
            moved = None if np.array_equal(parents, rows) else parents
            results = Results(rows, tokens, stops, moved)
        self._wanted = False
        _, plans = self._desk.commit(results, self._now - 1, self._now)
        self._opened(plans)

    def _failing(self, of: list[int]) -> list[bool]:
        """Samples that fail, alone; a beam fails as a whole."""
        odds = self._mix.failures / 10
        beams = {request: self._rng.random() < odds for request in dict.fromkeys(of)}
        return [
            beams[request] if self._beam[request] else self._rng.random() < odds for request in of
        ]

    def _opened(self, plans) -> None:
        for plan in plans:
            self._rows |= {row: request for request, _, row in plan.admitted}
        self._transfers.extend(transfer.id for transfer in self._desk.take_transfers())


SWAP = {"host_blocks": 30, "preemption": "swap", "num_blocks": 16}
SHARES = Mix()
TIGHT = Mix(num_blocks=14)
FORKS = Mix(widths=(1, 2, 3))
BEAMS = Mix(widths=(1, 3), beams=True, num_blocks=32)
SWAPS = Mix(**SWAP)
SWAPS_WIDE = Mix(widths=(1, 2, 3), policy="fair", **SWAP)
ABORTS = Mix(widths=(1, 2), aborts=0.06, **SWAP)
FAULTS = Mix(widths=(1, 2), failures=0.2, policy="priority", **SWAP)
BEAM_FAULTS = Mix(widths=(1, 3), beams=True, failures=0.2, aborts=0.04, **SWAP)


def is_shared(record: Record) -> bool:
    return isinstance(record, Admitted) and record.shared > 0


def is_swap(direction: str) -> Callable[[Record], bool]:
    return lambda r: isinstance(r, SwapStarted) and r.direction == direction


FEATURES: dict[str, tuple[Mix, Callable[[Record], bool]]] = {
    "sharing": (SHARES, is_shared),
    "eviction": (SHARES, lambda r: isinstance(r, Evicted)),
    "recompute": (TIGHT, lambda r: isinstance(r, Preempted) and r.mode == "recompute"),
    "forks": (FORKS, lambda r: isinstance(r, Forked)),
    "copy-on-write": (FORKS, lambda r: isinstance(r, Copied)),
    "beams": (BEAMS, lambda r: isinstance(r, Reparented)),
    "swap-out": (SWAPS, is_swap("out")),
    "swap-in": (SWAPS, is_swap("in")),
    "swap-of-forks": (SWAPS_WIDE, is_swap("in")),
    "lost-transfer": (FAULTS, lambda r: isinstance(r, SwapEnded) and not r.ok),
    "failed-step": (FAULTS, lambda r: isinstance(r, Ended) and r.reason == Finish.FAILED),
    "failed-beam": (BEAM_FAULTS, lambda r: isinstance(r, Reparented)),
    "abort": (ABORTS, lambda r: isinstance(r, Ended) and r.reason == Finish.ABORTED),
}


def recorded(path: Path, mix: Mix, seed: int = 0, max_open_plans: int = 2) -> list[Record]:
    """Drives, and gives every decision that was recorded."""
    Drive(path, mix, seed, max_open_plans).run(60)
    with RecordingReader(path) as reader:
        return [record for entry in reader.entries() for record in entry.decisions]


@pytest.mark.parametrize("max_open_plans", [1, 2])
@pytest.mark.parametrize("feature", FEATURES)
def test_the_feature_shows_up_and_is_repeated_by_journal_and_twin(
    tmp_path, feature, max_open_plans
):
    mix, shows = FEATURES[feature]
    path = tmp_path / "run.jsonl"
    decisions = recorded(path, mix, seed=len(feature), max_open_plans=max_open_plans)
    assert sum(map(shows, decisions)) >= 3, Counter(type(d).__name__ for d in decisions)
    said: list[str] = []
    assert replay_lockstep(path, said.append) == 0, said
    assert [line.split(",")[0] for line in said] == ["journal: equal", "twin: equal"]


def test_aborts_hit_requests_in_every_state(tmp_path):
    """Waiting, running and swapped out, as the decisions before them tell."""
    states: Counter[str] = Counter()
    for seed in range(3):
        path = tmp_path / f"run{seed}.jsonl"
        recorded(path, ABORTS, seed)
        assert replay_lockstep(path, lambda line: None) == 0
        out: set[int] = set()
        seen: set[int] = set()
        admitting: dict[int, int] = {}
        with RecordingReader(path) as reader:
            for entry in reader.entries():
                if isinstance(entry.call, Abort) and entry.call.ended:
                    request = entry.call.request
                    known = "running" if request in seen else "waiting"
                    states["swapped" if request in out else known] += 1
                for record in entry.decisions:
                    if isinstance(record, Admitted):
                        seen.add(record.request)
                        admitting[record.row] = record.request
                    if isinstance(record, Preempted) and record.mode == "swap":
                        out.add(record.request)
                    if isinstance(record, SwapStarted) and record.direction == "in":
                        out.discard(record.request)
    assert set(states) == {"waiting", "running", "swapped"}, states


def lose_share(lines):
    shared = next(line for line in lines if line["type"] == "admit" and line["shared"])
    shared["shared"] -= 1


def lose_child(lines):
    first(lines, "fork")["children"] = []


def copy_to_another_frame(lines):
    first(lines, "copy")["target"] += 1


def change_parent(lines):
    commit = next(line for line in lines if line["type"] == "commit" and line["parents"])
    commit["parents"] = []


def swap_other_way(lines):
    first(lines, "swap", direction="out")["direction"] = "in"


def swap_fewer_blocks(lines):
    first(lines, "swap", direction="in")["num_blocks"] += 1


def abort_another(lines):
    first(lines, "abort", ended=True)["ended"] = False


def find_lost_transfer(lines):
    first(lines, "transferred", ok=False)["ok"] = True


@pytest.mark.parametrize(
    ("mix", "change"),
    [
        (SHARES, lose_share),
        (FORKS, lose_child),
        (FORKS, copy_to_another_frame),
        (BEAMS, change_parent),
        (SWAPS, swap_other_way),
        (SWAPS, swap_fewer_blocks),
        (ABORTS, abort_another),
        (FAULTS, find_lost_transfer),
    ],
)
def test_a_changed_feature_is_told_apart(tmp_path, mix, change):
    path = tmp_path / "run.jsonl"
    recorded(path, mix)
    said: list[str] = []
    assert replay_lockstep(edited(path, change), said.append) == 1
    assert said[0].startswith("journal: different at line ")
