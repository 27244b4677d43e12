"""Settings of a replay: frozen, validated once when built by `build_config`. Knows no file and no flag parser."""

import hashlib
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from traces.checked import checked
from traces.shaping import Shaping

Positive = Annotated[int, Meta(ge=1)]
Dtype = Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"]
KvDtype = Literal["fp32", "fp16", "bf16", "fp8", "int8"]
Routing = Literal["round-robin", "least-loaded", "prefix-aware"]
FLAGS: Final = {"num_sequences": "--n"}
"""Of settings whose flag has another name than they."""


class ReplayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides the outcome of a replay, beside the trace."""

    model: str = "Llama-3.1-8B"
    hardware: str = "A100-80"
    dtype: Dtype = "bf16"
    kv_dtype: KvDtype = "bf16"
    cost: str = "roofline"
    """What a step costs: `roofline`, `fitted:RECORDING` or `table:FILE.csv`."""
    tensor_parallel: Positive = 1
    """Devices that each replica is spread over."""
    block_size: Positive = 16
    num_blocks: Positive | None = None
    """Size of the pool in blocks; None: from memory, weights, activations and utilisation."""
    kv_gb: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Size of the pool in 10^9 bytes, instead of `num_blocks`."""
    utilisation: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of device memory that weights, activations, runtime and pool take together."""
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.01
    max_batch: Positive = 256
    token_budget: Positive = 2048
    max_context: Positive | None = None
    """None: the model's."""
    open_plans: Annotated[int, Meta(ge=1, le=2)] = 2
    allocator: Literal["paged", "max", "pow2", "oracle"] = "paged"
    """`paged`; for comparison one contiguous run a sequence: for the longest that may be, for the output rounded up to a power of two, or for
    exactly what it will use.
    """
    batching: Literal["continuous", "static"] = "continuous"
    """`static`, for comparison: who waits comes in only when nobody runs."""
    prefix_cache: bool = True
    max_partial_prefills: Positive | None = None
    policy: Literal["fcfs", "priority", "fair"] = "fcfs"
    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    host_gb: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Host memory of each replica to swap to, in 10^9 bytes."""
    link_gb_per_s: Annotated[float, Meta(gt=0, le=1e5)] = 25.0
    """Between a device and its host, each direction, in 10^9 bytes a second."""
    replicas_per_link: Positive = 1
    """So many replicas share a host's link."""
    num_sequences: Positive = 1
    """Answers to each prompt; each is as long as the trace says."""
    beam_width: Annotated[int, Meta(ge=2)] | None = None
    """Each answer is found by a beam search over so many hypotheses; None: sampled."""
    replicas: Annotated[int, Meta(ge=1, le=1024)] = 1
    router: Routing = "round-robin"
    shaping: Shaping = Shaping()
    """What is asked of the trace before it is replayed."""
    until_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Stop at this simulated time; what is open then counts as unfinished."""

    def __post_init__(self) -> None:
        if self.preemption != "recompute" and not self.host_gb:
            raise ValueError(f"--preemption {self.preemption} needs --host-gb above 0")
        if self.num_sequences > self.max_batch:
            raise ValueError(
                f"--n ({self.num_sequences}) must be at most --max-batch ({self.max_batch})"
            )
        if self.beam_width is not None and self.beam_width > self.max_batch:
            raise ValueError(
                f"--beam-width ({self.beam_width}) must be at most --max-batch ({self.max_batch})"
            )
        if self.beam_width is not None and self.num_sequences > 1:
            raise ValueError("give either --n or --beam-width, not both")
        if self.allocator != "paged":
            if self.num_sequences > 1 or self.beam_width is not None:
                raise ValueError(
                    f"--allocator {self.allocator} keeps each sequence in one run and shares nothing; "
                    "leave out --n and --beam-width"
                )
            if self.preemption != "recompute":
                raise ValueError(
                    f"--allocator {self.allocator} never preempts; leave out --preemption"
                )
        if self.token_budget < self.max_batch:
            raise ValueError(
                f"--token-budget ({self.token_budget}) must be at least --max-batch ({self.max_batch}), "
                "so that every running sequence can decode in each step"
            )


def build_config(**settings: Any) -> ReplayConfig:
    """The settings, checked; those of the shaping are given beside the others.

    Raises:
        ConfigError: a setting is unknown or out of range; the message names its flag.
    """
    shaping = {name: settings.pop(name) for name in Shaping.__struct_fields__ if name in settings}
    return checked(settings | {"shaping": shaping}, ReplayConfig, FLAGS)


def config_hash(resolved: object) -> str:
    """SHA-256, in hex, of the canonical JSON of settings as resolved."""
    return hashlib.sha256(msgspec.json.encode(resolved, order="sorted")).hexdigest()
