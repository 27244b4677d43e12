"""Settings of the core: frozen, validated once when built by `msgspec.convert`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
Frames = Annotated[int, Meta(ge=1, le=1 << 28)]
"""Ids of frames are 32-bit, and the tables of so many take gigabytes of the host's memory."""


class MemoryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The KV pool. `num_blocks` frames of `block_size` token positions each."""

    num_blocks: Frames
    block_size: Positive = 16
    watermark: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.01
    """Share of the frames that admission of a new sequence leaves free while others run."""
    prefix_cache: bool = True
    """Keep full blocks findable by content, and share them."""
    host_blocks: Annotated[int, Meta(ge=0, le=1 << 28)] = 0
    """Blocks of host memory to swap to; 0: swapping falls back to recompute."""


class SwapCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `preemption = "auto"` compares: moving a victim out and in, against computing it again."""

    block_bytes: Positive
    link_bytes_per_s: Annotated[float, Meta(gt=0)]
    """Of one direction between device and host."""
    prefill_tokens_per_s: Annotated[float, Meta(gt=0)]


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one step and of one sequence."""

    max_context: Positive
    """Most tokens, prompt and output together, that one sequence may have."""
    token_budget: Positive = 2048
    """Most positions computed in one step, decodes and prompt chunks together."""
    max_batch: Positive = 256
    """Most sequences that run at once."""
    max_partial_prefills: Positive | None = None
    """Most prompts that are computed in parts at once; None: as many as fit."""
    batching: Literal["continuous", "static"] = "continuous"
    """`static`, for comparison: who waits comes in only when nobody runs, as many as one step's budget takes."""
    policy: Literal["fcfs", "priority", "fair"] = "fcfs"
    """Who is admitted next: by arrival; by class, then arrival; by class, then the tenant served least."""
    aging_ns: Annotated[int, Meta(ge=0)] = 0
    """Under `priority` and `fair`: a waiting request rises one class for each such span; 0: never."""
    prompt_weight: Annotated[float, Meta(ge=0)] = 1.0
    """`fair`: what a computed prompt token costs its tenant."""
    output_weight: Annotated[float, Meta(ge=0)] = 2.0
    """`fair`: what a generated token costs its tenant."""
    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    swap_costs: SwapCosts | None = None
    """Required by `auto`."""
    max_open_plans: Annotated[int, Meta(ge=1, le=2)] = 2
    log: bool = True
    """Keep the decision log. Off saves time and memory; decisions are the same."""

    def __post_init__(self) -> None:
        if self.preemption == "auto" and self.swap_costs is None:
            raise ValueError("preemption = auto needs swap_costs")
        if self.token_budget < self.max_batch:
            raise ValueError(
                f"token_budget ({self.token_budget}) must be at least max_batch ({self.max_batch}), "
                "so that every running sequence can decode in each step"
            )


class CoreConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a `Scheduler` is built from."""

    memory: MemoryConfig
    scheduler: SchedulerConfig
