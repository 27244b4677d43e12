"""What an idle machine spends its time on where it misses a promise: the weights, or a long prompt. Runs nothing."""

from sim.cost import StepWork, decode_work
from sim.hardware import stored_bytes
from sim.plan.result import PlanTrace
from sim.pricing import make_cost
from sim.report.figures import Resolved
from sim.sweep.render import show_ms
from traces.judge import ClauseFigure


def explain(late: list[ClauseFigure], machine: Resolved, trace: PlanTrace) -> list[str]:
    """A clause for each promise whose limit lies below what one step, or one prompt, takes."""
    cost = make_cost(machine)
    budget = machine.settings.token_budget
    found = []
    step_ms = cost.step_ns(decode_work(1, 1)) / 1e6
    for clause in late:
        if clause.name.startswith("tpot") and clause.limit_ms < step_ms:
            found.append(f"one token takes {show_ms(step_ms)} at least{_weights(machine)}")
        if clause.name.startswith("ttft") and trace.longest_prompt:
            chunks = prompt_chunks(trace.longest_prompt, budget)
            prompt_ms = sum(cost.step_ns(work) for work in chunks) / 1e6
            if clause.limit_ms < prompt_ms:
                found.append(
                    f"the longest prompt, {trace.longest_prompt:,} tokens, takes {show_ms(prompt_ms)} where nothing of it is cached"
                )
    return found


def prompt_chunks(tokens: int, budget: int) -> list[StepWork]:
    """The steps that compute one prompt alone."""
    steps = []
    for start in range(0, tokens, budget):
        count = min(budget, tokens - start)
        pairs = count * start + count * (count + 1) // 2
        last = start + count == tokens
        steps.append(
            StepWork(count, int(last), 1, start + count, pairs, 1, count, start + count, pairs)
        )
    return steps


def _weights(machine: Resolved) -> str:
    """What a step reads whatever it computes, where the price says so: of experts one token's."""
    if machine.cost_model != "roofline":
        return ""
    model, dtype = machine.model, machine.settings.dtype
    matrix_bytes, other_bytes = stored_bytes(dtype)
    shared = model.num_layers * model.shared_matmul_params
    others = model.read_params - model.num_layers * model.layer_matmul_params
    expert = model.num_layers * model.experts_per_token * model.mlp_params
    size = (shared + (expert if model.num_experts else 0)) * matrix_bytes + others * other_bytes
    degree = machine.settings.tensor_parallel
    each = f", {size / degree / 1e9:.1f} of them on each device" if degree > 1 else ""
    return f", in which {size / 1e9:.1f} GB of weights are read{each}"
