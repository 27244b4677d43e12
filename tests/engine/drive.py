"""Drives a runner by the real scheduler, with no loop, no clock and no gateway."""

import numpy as np
from numpy.typing import NDArray

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Blocked, Finish, Idle, Plan, Request, Results
from engine.core.scheduler import Scheduler
from engine.executor import Executor, NewSequence, SamplingParams

NOW = TimeNs(0)
GREEDY = SamplingParams(temperature=0.0)


def drive(
    runner: Executor,
    prompts: list[NDArray[np.int32]],
    max_tokens: int,
    *,
    sampling: list[SamplingParams] | None = None,
    num_blocks: int | None = None,
    token_budget: int = 2048,
    max_batch: int = 256,
    open_plans: int = 2,
) -> tuple[list[list[int]], Scheduler]:
    """Each prompt's tokens, none stopped early, and the scheduler as it was left.

    With two open plans each step is executed before the one ahead of it commits, as the loop does.
    """
    scheduler = Scheduler(
        CoreConfig(
            memory=MemoryConfig(
                num_blocks=num_blocks or runner.num_blocks, block_size=runner.block_size
            ),
            scheduler=SchedulerConfig(
                max_context=runner.max_context,
                token_budget=token_budget,
                max_batch=min(max_batch, token_budget),
                max_open_plans=open_plans,
            ),
        )
    )
    params = sampling or [GREEDY] * len(prompts)
    outputs: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        assert scheduler.submit(Request(RequestId(i), len(prompt), max_tokens), NOW) is None
    open_: list[tuple[Plan, Results]] = []
    while True:
        plan = scheduler.schedule(NOW) if len(open_) < open_plans else Blocked()
        if isinstance(plan, Plan):
            new = [NewSequence(row, r, prompts[r], params[r]) for r, _, row in plan.admitted]
            sampled = runner.execute(plan, new)
            stops = np.zeros(len(sampled.tokens), np.int8)
            for index, _ in sampled.failures:
                stops[index] = Finish.FAILED
            open_.append((plan, Results(plan.rows[plan.samples], sampled.tokens, stops)))
            continue
        if isinstance(plan, Idle) and not open_:
            return outputs, scheduler
        outcome = scheduler.commit(*open_.pop(0), NOW)
        for request, token in zip(outcome.requests.tolist(), outcome.tokens.tolist(), strict=True):
            outputs[request].append(token)
