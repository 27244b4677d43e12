"""The discipline that the live loop and the twin share: numbered calls, rising times, plans opened at boundaries."""

from itertools import pairwise

import numpy as np
import pytest

from engine.core.aliases import PlainAliases
from engine.core.ids import RequestId
from engine.core.journal import Abort, Call, Commit, Schedule, Submit
from engine.core.log import Admitted, Ended, Record
from engine.core.plan import Finish, Request, Results, StepFailed
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from tests.engine.toy import core_config


class Ledger:
    def __init__(self) -> None:
        self.aliases = PlainAliases(4)
        self.calls: list[Call] = []
        self.decisions: list[list[Record]] = []

    def call(self, call: Call, decisions: list[Record]) -> None:
        self.calls.append(call)
        self.decisions.append(decisions)


def going_on(desk: Desk, *stops: int) -> Results:
    plan = desk.open_plans[0]
    rows = plan.rows[plan.samples]
    column = np.array(stops or [0] * len(rows), np.int8)
    return Results(rows, np.zeros(len(rows), np.int32), column)


def request(number: int, num_prompt: int = 6, max_tokens: int | None = 8) -> Request:
    return Request(RequestId(number), num_prompt, max_tokens)


def test_every_call_is_numbered_and_recorded_with_its_decisions():
    ledger = Ledger()
    desk = Desk(Scheduler(core_config()), lambda: 50, ledger)
    desk.submit(request(0))
    desk.submit(request(1, num_prompt=600))
    assert len(desk.plan()) == 2
    desk.commit(going_on(desk, Finish.STOP), 51, 52)
    desk.commit(StepFailed("hiccup"), 53, 54)
    desk.abort(RequestId(0))
    assert [call.call for call in ledger.calls] == list(range(desk.num_calls)) == list(range(9))
    kinds = [Submit, Submit, Schedule, Schedule, Commit, Schedule, Commit, Schedule, Abort]
    assert [type(call) for call in ledger.calls] == kinds
    submits = [call for call in ledger.calls if isinstance(call, Submit)]
    assert [submit.rejected for submit in submits] == [None, "context_exceeded"]
    commits = [call for call in ledger.calls if isinstance(call, Commit)]
    assert [(c.started, c.ended, c.stops, c.failed) for c in commits] == [
        (51, 52, ((0, Finish.STOP),), None),
        (53, 54, (), "hiccup"),
    ]
    assert [type(made) for made in ledger.decisions[2]] == [Admitted]
    assert [type(made) for made in ledger.decisions[4]] == [Ended]


@pytest.mark.parametrize("times", [[5] * 20, list(range(20, 0, -1))], ids=["stands", "goes back"])
def test_times_rise_strictly_whatever_the_clock_does(times):
    ledger, clock = Ledger(), iter(times)
    desk = Desk(Scheduler(core_config()), lambda: next(clock), ledger)
    for number in range(3):
        desk.submit(request(number))
    desk.plan()
    desk.abort(RequestId(1))
    desk.commit(going_on(desk), 0, 0)
    boundaries = [call.now for call in ledger.calls if not isinstance(call, Schedule)]
    assert all(earlier < later for earlier, later in pairwise(boundaries))


def test_all_calls_of_a_boundary_carry_one_time():
    ledger, clock = Ledger(), iter(range(100))
    desk = Desk(Scheduler(core_config()), lambda: next(clock), ledger)
    desk.submit(request(0))
    desk.plan()
    desk.commit(going_on(desk), 0, 0)
    times = [call.now for call in ledger.calls]
    assert times == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("max_open_plans", [1, 2])
def test_plans_are_opened_up_to_the_limit_and_one_more_after_each_commit(max_open_plans):
    desk = Desk(Scheduler(core_config(max_open_plans=max_open_plans)), lambda: 0)
    desk.submit(request(0))
    assert len(desk.plan()) == max_open_plans
    assert not desk.can_plan
    assert desk.plan() == []
    _, plans = desk.commit(going_on(desk), 0, 0)
    assert [plan.step for plan in plans] == [max_open_plans]


def test_call_that_the_core_refuses_is_not_recorded():
    ledger = Ledger()
    desk = Desk(Scheduler(core_config()), lambda: 0, ledger)
    desk.submit(request(0))
    with pytest.raises(ValueError, match="already"):
        desk.submit(request(0))
    assert desk.num_calls == len(ledger.calls) == 1


@pytest.mark.parametrize("recorded", [False, True])
def test_watcher_is_told_every_decision_while_it_watches_and_the_recorder_misses_none(recorded):
    ledger = Ledger()
    config = core_config()
    desk = Desk(Scheduler(config), lambda: 50, ledger if recorded else None)
    told: list[Record] = []
    desk.watch(told.extend)
    desk.submit(request(0))
    desk.plan()
    assert [type(made) for made in told] == [Admitted]
    desk.watch(None)
    desk.abort(RequestId(0))
    desk.commit(going_on(desk), 51, 52)
    assert len(told) == 1
    if recorded:
        recorded_kinds = [type(made) for decisions in ledger.decisions for made in decisions]
        assert recorded_kinds[:2] == [Admitted, Ended]
