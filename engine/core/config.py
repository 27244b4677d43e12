"""Settings of the core: frozen, validated once when built by `msgspec.convert`."""

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]


class MemoryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The KV pool. `num_blocks` frames of `block_size` token positions each."""

    num_blocks: Positive
    block_size: Positive = 16
    watermark: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.01
    """Share of the frames that admission of a new sequence leaves free while others run."""


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one step and of one sequence."""

    max_context: Positive
    """Most tokens, prompt and output together, that one sequence may have."""
    token_budget: Positive = 2048
    """Most positions computed in one step, decodes and prompt chunks together."""
    max_batch: Positive = 256
    """Most sequences that run at once."""
    max_open_plans: Annotated[int, Meta(ge=1, le=2)] = 2
    log: bool = True
    """Keep the decision log. Off saves time and memory; decisions are the same."""

    def __post_init__(self) -> None:
        if self.token_budget < self.max_batch:
            raise ValueError(
                f"token_budget ({self.token_budget}) must be at least max_batch ({self.max_batch}), "
                "so that every running sequence can decode in each step"
            )


class CoreConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a `Scheduler` is built from."""

    memory: MemoryConfig
    scheduler: SchedulerConfig
