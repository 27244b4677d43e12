"""The scripted model is stern: it stops at every plan that breaks the contract or reads what is not its own."""

import numpy as np
import pytest

from engine.core.errors import ExecutorError, InvariantError
from engine.core.ids import RequestId
from engine.core.plan import Plan, Request, Results
from engine.core.scheduler import Scheduler
from engine.executor import NewSequence, SamplingParams
from engine.scripted import ScriptedExecutor
from tests.engine.toy import core_config, scripted
from tests.reference.scripted import scripted_answer

I32 = np.int32


def plan(step, rows, admitted=(), deltas=(), num_decodes=0) -> Plan:
    """`rows`: (row, request, start, count, samples); `deltas`: (row, column, frame)."""
    columns = list(zip(*rows, strict=True))
    changed = list(zip(*deltas, strict=True)) or [(), (), ()]
    return Plan(
        step=step,
        rows=np.array(columns[0], I32),
        requests=np.array(columns[1], np.int64),
        starts=np.array(columns[2], I32),
        counts=np.array(columns[3], I32),
        samples=np.array(columns[4], np.bool_),
        num_decodes=num_decodes,
        admitted=admitted,
        delta_rows=np.array(changed[0], I32),
        delta_cols=np.array(changed[1], I32),
        delta_blocks=np.array(changed[2], I32),
    )


def newcomer(row: int, request: int, length: int) -> NewSequence:
    prompt = np.full(length, request + 1, I32)
    return NewSequence(row, RequestId(request), prompt, SamplingParams())


def two_rows(executor: ScriptedExecutor, second_frame: int) -> None:
    """Requests 0 and 1 with prompts of 6 and 3 tokens in frames (0, 1) and (`second_frame`)."""
    executor.execute(
        plan(
            0,
            [(0, 0, 0, 6, True), (1, 1, 0, 3, True)],
            admitted=((RequestId(0), 0, 0), (RequestId(1), 0, 1)),
            deltas=[(0, 0, 0), (0, 1, 1), (1, 0, second_frame)],
        ),
        [newcomer(0, 0, 6), newcomer(1, 1, 3)],
    )


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor(num_blocks=8, block_size=4, max_context=32)


def test_tokens_depend_on_prompt_and_position_alone(executor):
    two_rows(executor, 2)
    decode = plan(1, [(1, 1, 3, 1, True), (0, 0, 6, 1, True)], num_decodes=2, deltas=[(0, 1, 1)])
    tokens = executor.execute(decode, []).tokens
    assert tokens[0] == scripted_answer(np.full(3, 2, I32), 2)[1]
    assert tokens[1] == scripted_answer(np.full(6, 1, I32), 2)[1]


def test_frame_in_two_tables_is_noticed(executor):
    with pytest.raises(InvariantError, match="two rows write one slot"):
        two_rows(executor, 1)


def test_frame_that_was_given_away_is_noticed_when_it_is_read(executor):
    two_rows(executor, 2)
    thief = plan(1, [(2, 2, 0, 2, True)], admitted=((RequestId(2), 0, 2),), deltas=[(2, 0, 0)])
    executor.execute(thief, [newcomer(2, 2, 2)])
    with pytest.raises(InvariantError, match="request 0 reads position 0 in frame 0, which holds"):
        executor.execute(plan(2, [(0, 0, 6, 1, True)], num_decodes=1), [])


def test_resumed_row_reads_no_entry_from_before(executor):
    two_rows(executor, 2)
    with pytest.raises(InvariantError, match="request 0 has no frame for position 4"):
        executor.execute(plan(1, [(0, 0, 0, 7, True)], deltas=[(0, 0, 5)]), [])


def test_position_without_a_frame_is_noticed(executor):
    two_rows(executor, 2)
    decode = [(1, 1, 3, 1, True)]
    executor.execute(plan(1, decode, num_decodes=1), [])
    with pytest.raises(InvariantError, match="request 1 has no frame for position 4"):
        executor.execute(plan(2, [(1, 1, 4, 1, True)], num_decodes=1), [])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (plan(2, [(0, 0, 6, 1, True)], num_decodes=1), "step 2 came where step 1 was due"),
        (plan(1, [(0, 5, 6, 1, True)], num_decodes=1), "row 0 belongs to another request"),
        (plan(1, [(0, 0, 6, 0, True)]), "row 0 computes nothing"),
        (plan(1, [(0, 0, 6, 2, True)]), "row 0 computes a token that is not known"),
        (plan(1, [(0, 0, 6, 1, False)]), "row 0 does not sample after its last known token"),
        (plan(1, [(0, 0, 5, 1, True)], num_decodes=1), "row 0 does not go on where it was"),
        (
            plan(1, [(0, 0, 4, 2, False)], num_decodes=1, deltas=[(0, 0, 0), (0, 1, 1)]),
            "row 0 is no decode",
        ),
        (plan(1, [(0, 0, 6, 27, True)]), "row 0 exceeds the context"),
        (plan(1, [(0, 0, 6, 1, True)] * 2), "names a row twice"),
        (plan(1, [(0, 0, 6, 1, True)], deltas=[(0, 2, 8)]), "a frame outside the pool of 8"),
        (plan(1, [(0, 0, 6, 1, True)], admitted=((RequestId(1), 0, 1),)), "admits other sequences"),
    ],
)
def test_plan_that_breaks_the_contract_is_refused(executor, second, message):
    two_rows(executor, 2)
    with pytest.raises(InvariantError, match=message):
        executor.execute(second, [])


def test_rows_of_a_failed_step_are_unknown_until_they_are_taken_over():
    faults = {1: ExecutorError("hiccup")}
    executor = ScriptedExecutor(
        num_blocks=8, block_size=4, max_context=32, step_fault=lambda plan: faults.get(plan.step)
    )
    two_rows(executor, 2)
    with pytest.raises(ExecutorError, match="hiccup"):
        executor.execute(plan(1, [(0, 0, 6, 1, True)], num_decodes=1), [])
    # The plan that was open behind it still names the row, as if its token had been sampled.
    both = [(0, 0, 7, 1, True), (1, 1, 3, 1, True)]
    tokens = executor.execute(plan(2, both, num_decodes=2), []).tokens
    assert tokens[1] == scripted_answer(np.full(3, 2, I32), 2)[1]


def test_early_free_in_the_scheduler_is_found():
    """A planted fault of the kind that it is there to find: frames of a running row go back to the pool."""
    config = core_config(num_blocks=8, block_size=4)
    scheduler, executor = Scheduler(config), scripted(config)
    scheduler.submit(Request(RequestId(0), 6, 20), 0)

    def step(now: int, new) -> None:
        made = scheduler.schedule(now)
        tokens = executor.execute(made, new).tokens
        rows = made.rows[made.samples]
        scheduler.commit(made, Results(rows, tokens, np.zeros(len(rows), np.int8)), now)

    step(1, [newcomer(0, 0, 6)])
    scheduler.allocator.pool.give(scheduler.allocator.blocks_of(0).copy())
    scheduler.submit(Request(RequestId(1), 3, 5), 2)
    with pytest.raises(InvariantError, match="request 0 reads position 0 in frame 0"):
        step(3, [newcomer(1, 1, 3)])
