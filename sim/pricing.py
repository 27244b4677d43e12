"""The cost model that a replay asks for: the roofline, a fit to a recording, or a table. Knows the words of the flag, and no steps."""

from pathlib import Path
from typing import Any, Final, NamedTuple

from sim.cost import CostModel
from sim.fitted import Fit, FittedCost, fit_recording
from sim.report.figures import Resolved
from sim.roofline import Roofline
from sim.step_table import StepTable, TableCost, load_step_table
from traces.names import UnknownNameError, unknown
from traces.recording import RecordingReader

KINDS: Final = ("roofline", "fitted:RECORDING", "table:FILE.csv")


class Source(NamedTuple):
    """Where times of steps come from; neither a fit nor a table: the roofline."""

    fit: Fit | None = None
    table: StepTable | None = None

    @property
    def name(self) -> str:
        """As reports call it."""
        if self.fit is not None:
            return FittedCost.name
        return TableCost.name if self.table is not None else Roofline.name


def _split(cost: str) -> tuple[str, Path | None]:
    kind, _, file = cost.partition(":")
    if (kind == "roofline" and not file) or (kind in ("fitted", "table") and file):
        return kind, Path(file) if file else None
    raise UnknownNameError(f"--cost: {unknown('value', cost, KINDS)}")


def load_source(cost: str) -> Source:
    """Reads what `cost` names.

    Raises:
        ConfigError: the words are not known, or a table cannot be used.
        TraceError: a recording cannot be used.
    """
    kind, file = _split(cost)
    if file is None:
        return Source()
    return (
        Source(fit=fit_recording(file)) if kind == "fitted" else Source(table=load_step_table(file))
    )


def recorded_settings(cost: str) -> dict[str, Any]:
    """Settings of the engine that was recorded, as far as a replay has them, where `cost` is a fit; else none.

    Raises:
        ConfigError: the words are not known.
        TraceError: the recording cannot be read.
    """
    kind, file = _split(cost)
    if kind != "fitted" or file is None:
        return {}
    with RecordingReader(file) as reader:
        memory, scheduler = reader.header.config.memory, reader.header.config.scheduler
    return {
        "num_blocks": memory.num_blocks,
        "block_size": memory.block_size,
        "watermark": memory.watermark,
        "prefix_cache": memory.prefix_cache,
        "max_context": scheduler.max_context,
        "token_budget": scheduler.token_budget,
        "max_batch": scheduler.max_batch,
        "max_partial_prefills": scheduler.max_partial_prefills,
        "policy": scheduler.policy,
        "open_plans": scheduler.max_open_plans,
    }


def make_cost(resolved: Resolved) -> CostModel:
    """The model that prices the steps of one replica.

    Raises:
        ConfigError: the hardware lacks what the roofline needs.
    """
    if resolved.fit is not None:
        return FittedCost(resolved.fit)
    if resolved.table is not None:
        return TableCost(resolved.table)
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
