"""The twin: simulated instants follow from the contract, nothing vanishes, two plans are open as live."""

from hypothesis import given
from hypothesis import strategies as st

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.scheduler import Scheduler
from sim.cost import StepWork, chunk_by_chunk
from sim.ledger import State
from sim.occupancy import Level
from sim.replica import Replica
from sim.twin import run_twin
from traces.schema import TraceRequest


class FixedCost:
    """Every step takes 100 ns, and one more for each position; remembers what it priced."""

    name = "fixed"

    def __init__(self) -> None:
        self.works: list[StepWork] = []

    def step_ns(self, work: StepWork) -> int:
        self.works.append(work)
        return 100 + work.num_tokens

    def run_ns(self, sizes, contexts):
        return 100 + sizes

    def chunks_ns(self, work, steps):
        return chunk_by_chunk(self, work, steps)


def run(
    rows: list[tuple[int, int, int]],
    *,
    num_blocks: int = 100,
    block_size: int = 4,
    token_budget: int = 64,
    max_batch: int = 8,
    max_context: int = 4096,
    open_plans: int = 2,
    until_ns: int | None = None,
) -> tuple[Replica, Scheduler, FixedCost]:
    config = CoreConfig(
        memory=MemoryConfig(num_blocks=num_blocks, block_size=block_size, watermark=0.0),
        scheduler=SchedulerConfig(
            max_context=max_context,
            token_budget=token_budget,
            max_batch=max_batch,
            max_open_plans=open_plans,
        ),
    )
    scheduler, cost = Scheduler(config), FixedCost()
    requests = [TraceRequest(i, *row) for i, row in enumerate(rows, start=2)]
    ran = run_twin(requests, [scheduler], cost, until_ns=until_ns)
    return ran.replicas[0], scheduler, cost


def test_a_lone_request_has_its_times_to_the_nanosecond():
    replica, _, _ = run([(0, 10, 3)])
    ledger = replica.ledger
    assert ledger.first_token_ns[0] == 110
    assert ledger.end_ns[0] == 110 + 2 * 101
    assert replica.num_steps == 3
    assert replica.num_output_tokens == 3


def test_an_arrival_in_mid_step_waits_for_the_plan_after_the_open_one():
    # 0..110 prefill of A; its decode is planned at 0 and runs 110..211; B, here at 50, joins at 211.
    replica, _, _ = run([(0, 10, 9), (50, 20, 1)])
    assert replica.ledger.first_token_ns[1] == 211 + 100 + 20 + 1


def test_an_arrival_that_finds_a_free_plan_is_planned_at_once():
    # A has no second token, so at 50 a second plan can be opened: B's alone, though C comes before it starts.
    replica, _, cost = run([(0, 10, 1), (50, 20, 1), (60, 30, 1)])
    assert [work.num_tokens for work in cost.works] == [10, 20, 30]
    assert list(replica.ledger.first_token_ns) == [110, 230, 360]


def test_with_one_open_plan_an_arrival_joins_the_next_step():
    replica, _, _ = run([(0, 10, 9), (50, 20, 1)], open_plans=1)
    assert replica.ledger.first_token_ns[1] == 110 + 100 + 20 + 1


def test_arrivals_at_the_instant_of_a_steps_end_come_before_it():
    # With one plan open, the step that ends at 110 is followed by one planned at 110.
    replica, _, cost = run([(0, 10, 9), (110, 20, 1), (110, 5, 1)], open_plans=1)
    assert cost.works[1].num_tokens == 1 + 20 + 5
    assert replica.ledger.first_token_ns[1] == replica.ledger.first_token_ns[2]


def test_simultaneous_first_arrivals_share_a_step():
    _, _, cost = run([(0, 10, 2), (0, 7, 2), (0, 5, 2)])
    assert cost.works[0].num_tokens == 22


def test_an_idle_engine_starts_at_the_arrival():
    replica, _, _ = run([(0, 10, 1), (10**9, 10, 1)])
    assert replica.ledger.first_token_ns[1] == 10**9 + 110
    held, _, used, running, _, busy = Level(*replica.timeline.totals())
    assert busy == 220
    assert running == 220
    assert held * 4 >= used
    assert replica.timeline.end_ns == 10**9 + 110


def test_a_trace_of_oversized_requests_terminates_and_reports_them_all():
    replica, _, _ = run([(i, 2000, 8) for i in range(5)], num_blocks=64, block_size=16)
    assert replica.ledger.count(State.REJECTED) == 5
    assert replica.ledger.rejections == {"pool_exceeded": 5}


def test_an_oversized_request_does_not_hold_up_the_next():
    rows = [(0, 2000, 8), (50_000_000, 20, 8)]
    replica, _, _ = run(rows, num_blocks=64, block_size=16)
    assert [State(s) for s in replica.ledger.state] == [State.REJECTED, State.DONE]


def test_memory_integrals_follow_the_steps():
    # One block of 4 until the third decode; positions count once computed, at the commit.
    replica, _, _ = run([(0, 3, 4)])
    held, _, used, running, _, busy = Level(*replica.timeline.totals())
    steps = [103, 101, 101, 101]
    assert busy == running == sum(steps)
    assert used == 0 * 103 + 3 * 101 + 4 * 101 + 5 * 101
    assert sum(steps) < held <= 2 * sum(steps)


def test_a_run_cut_off_counts_the_open_as_unfinished():
    replica, _, _ = run([(0, 10, 3), (5, 10, 300), (10**6, 10, 3)], until_ns=1000)
    assert len(replica.ledger) == 2
    assert [State(s) for s in replica.ledger.state] == [State.DONE, State.OPEN]
    assert replica.timeline.end_ns == 1000


workloads = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=25
)


@given(workloads, st.integers(1, 16), st.integers(1, 4), st.integers(1, 2), st.integers(4, 40))
def test_every_request_ends_once_and_the_pool_is_free_after(
    rows, num_blocks, block_size, open_plans, token_budget
):
    rows = sorted(rows)
    replica, scheduler, _ = run(
        rows,
        num_blocks=num_blocks,
        block_size=block_size,
        open_plans=open_plans,
        token_budget=token_budget,
        max_batch=4,
        max_context=48,
    )
    ledger = replica.ledger
    counts = {state: ledger.count(state) for state in State}
    assert counts[State.DONE] + sum(ledger.rejections.values()) == len(rows) == ledger.num_ended
    assert counts[State.REJECTED] == sum(ledger.rejections.values())
    fits = [
        p >= 1 <= o and p + o <= 48 and p + o - 1 <= num_blocks * block_size for _, p, o in rows
    ]
    assert [s == State.DONE for s in ledger.state] == fits
    assert replica.num_output_tokens == sum(
        o for (_, _, o), fit in zip(rows, fits, strict=True) if fit
    )
    assert scheduler.memory().held_blocks == 0
    for arrival, first, end, fit in zip(
        ledger.arrival_ns, ledger.first_token_ns, ledger.end_ns, fits, strict=True
    ):
        if fit:
            assert arrival < first <= end
    computed = sum(p + o - 1 for (_, p, o), fit in zip(rows, fits, strict=True) if fit)
    assert replica.num_step_tokens >= computed
    if not scheduler.num_preemptions and open_plans == 1:
        assert replica.num_step_tokens == computed


@given(workloads)
def test_the_same_rows_give_the_same_records(rows):
    rows = sorted(rows)
    first, _, _ = run(rows, num_blocks=12)
    second, _, _ = run(rows, num_blocks=12)
    assert first.ledger.end_ns == second.ledger.end_ns
    assert first.timeline.totals() == second.timeline.totals()
