"""Closed loops: a request is sent when the one it waits for has ended and its think time has passed."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.scheduler import Scheduler
from sim.clock import Clock
from sim.cost import StepWork, chunk_by_chunk
from sim.ledger import State
from sim.twin import Run, run_twin
from sim.workload import Workload
from traces.schema import ROOT, TraceRequest


class FixedCost:
    name = "fixed"

    def step_ns(self, work: StepWork) -> int:
        return 100 + work.num_tokens

    def run_ns(self, sizes, contexts):
        return 100 + sizes

    def chunks_ns(self, work, steps):
        return chunk_by_chunk(self, work, steps)


def run(requests: Iterable[TraceRequest], until_ns: int | None = None) -> Run:
    config = CoreConfig(
        memory=MemoryConfig(num_blocks=100, block_size=4),
        scheduler=SchedulerConfig(max_context=200, token_budget=64, max_batch=8),
    )
    return run_twin(requests, [Scheduler(config)], FixedCost(), until_ns=until_ns)


def turn(session: int, turn: int, after: int, *, at: int = 0, think: int = 0, prompt: int = 10):
    return TraceRequest(1, at, prompt, 2, session=session, turn=turn, after=after, think_ns=think)


def test_a_turn_is_sent_after_the_one_before_and_its_think_time():
    ledger = run([turn(0, 0, ROOT, at=5), turn(0, 1, 0, at=7, think=1000)]).ledger
    assert list(ledger.arrival_ns) == [5, ledger.end_ns[0] + 1000]


def test_two_turns_may_wait_for_one_and_run_beside_each_other():
    rows = [turn(0, 0, ROOT), turn(0, 1, 0, think=10), turn(0, 2, 0, think=10), turn(0, 3, 2)]
    ledger = run(rows).ledger
    after = ledger.end_ns[0] + 10
    assert list(ledger.arrival_ns[:3]) == [0, after, after]
    assert ledger.count(State.DONE) == 4


def test_a_refused_turn_lets_its_session_go_on():
    rows = [turn(0, 0, ROOT), turn(0, 1, 0, prompt=500, think=10), turn(0, 2, 1, think=10)]
    ledger = run(rows).ledger
    assert [State(s) for s in ledger.state] == [State.DONE, State.REJECTED, State.DONE]
    assert ledger.arrival_ns[2] == ledger.end_ns[0] + 20


def test_a_refused_first_turn_lets_its_session_go_on():
    rows = [turn(0, 0, ROOT, at=3, prompt=500), turn(0, 1, 0, think=10)]
    ledger = run(rows).ledger
    assert list(ledger.arrival_ns) == [3, 13]
    assert ledger.count(State.DONE) == 1


def test_sessions_do_not_wait_for_each_other():
    rows = [turn(7, 0, ROOT), turn(7, 1, 0, think=10**6), turn(9, 0, ROOT, at=50), turn(9, 1, 0)]
    ledger = run(rows).ledger
    assert list(ledger.arrival_ns[:2]) == [0, 50]
    assert ledger.count(State.DONE) == 4


def test_a_run_cut_off_says_what_was_never_sent():
    rows = [turn(0, 0, ROOT), turn(0, 1, 0, think=10**6), turn(0, 2, 1)]
    finished = run(rows, until_ns=200)
    assert len(finished.ledger) == 1
    assert finished.num_held_back == 2


def test_a_turn_whose_client_still_thinks_at_the_end_does_not_vanish():
    rows = [turn(0, 0, ROOT), turn(0, 1, 0, think=10**6), turn(0, 2, 1), turn(0, 3, ROOT, at=10**6)]
    for until in range(1, 3 * 10**6, 40_000):
        finished = run(rows, until_ns=until)
        assert len(finished.ledger) + finished.num_held_back == len(rows)


@pytest.mark.parametrize("in_sessions", [False, True])
def test_what_was_read_ahead_when_the_run_was_cut_off_does_not_vanish(in_sessions):
    rows = [
        turn(number // 2 if in_sessions else ROOT, number % 2, ROOT, at=100 * number)
        for number in range(20)
    ]
    for until in (1, 50, 100, 550, 1_000, 1_950, 10_000):
        read = []
        finished = run((read.append(row) or row for row in rows), until_ns=until)
        assert len(finished.ledger) + finished.num_held_back == len(read)
        assert len(read) < len(rows) or until > 1_500


sessions = st.lists(
    st.tuples(
        st.integers(0, 500),
        st.lists(st.tuples(st.integers(0, 400), st.integers(1, 250)), min_size=1, max_size=5),
    ),
    max_size=8,
)


@given(sessions)
def test_every_turn_is_sent_once_and_never_early(drawn):
    rows = []
    for session, (at, turns) in enumerate(sorted(drawn, key=lambda one: one[0])):
        for i, (think, prompt) in enumerate(turns):
            rows.append(turn(session, i, i - 1, at=at, think=think if i else 0, prompt=prompt))
    sent: list[tuple[int, int, int]] = []
    clock = Clock()
    numbers = iter(range(10**6))

    def send(row: TraceRequest) -> int | None:
        sent.append((clock.now, row.session, row.turn))
        if row.num_prompt > 200:
            return None
        number = next(numbers)
        clock.timeout(row.num_prompt).callbacks.append(lambda _: workload.ended(number))
        return number

    workload = Workload(clock, rows, send)
    clock.run_on(None)
    assert workload.num_held_back == 0
    times = {(session, turn): now for now, session, turn in sent}
    assert len(times) == len(sent) == len(rows)
    for row in rows:
        if row.after == ROOT:
            assert times[row.session, row.turn] == row.arrival_ns
        else:
            before = next(r for r in rows if (r.session, r.turn) == (row.session, row.after))
            took = before.num_prompt if before.num_prompt <= 200 else 0
            expected = times[row.session, row.after] + took + row.think_ns
            assert times[row.session, row.turn] == expected
