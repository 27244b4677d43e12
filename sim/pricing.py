"""The cost model that a replay asks for: the roofline, a fit to a recording, or a table. Knows files by their flag's words only."""

from sim.cost import CostModel
from sim.report.figures import Resolved
from sim.roofline import Roofline


def make_cost(resolved: Resolved) -> CostModel:
    """The model that prices the steps of one replica.

    Raises:
        ConfigError: the hardware lacks what the roofline needs.
    """
    settings = resolved.settings
    return Roofline(
        resolved.hardware,
        resolved.model,
        settings.dtype,
        settings.kv_dtype,
        resolved.efficiency,
        block_size=settings.block_size,
        block_efficiency=resolved.block_efficiency,
        tensor_parallel=settings.tensor_parallel,
        overlap=settings.open_plans > 1,
    )
