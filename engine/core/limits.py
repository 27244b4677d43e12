"""Whether a request can ever run, and how long its sequences may become. Pure; knows no queue and no state."""

from typing import Final

from engine.core.allocator import Allocator
from engine.core.config import CoreConfig
from engine.core.content import TokenContent
from engine.core.plan import Rejected, Request

_MOST_PRIORITY: Final = 2**20


def check_request(request: Request) -> None:
    """Raises `ValueError` where a driver built a request that contradicts itself: not the client's fault."""
    content = request.content
    if isinstance(content, TokenContent) and len(content.tokens) != request.num_prompt:
        raise ValueError(
            f"content has {len(content.tokens)} tokens, but the prompt has {request.num_prompt}"
        )
    if not request.weight > 0:
        raise ValueError(f"weight must be above 0, not {request.weight}")
    if abs(request.priority) > _MOST_PRIORITY:
        raise ValueError(f"priority must be within {_MOST_PRIORITY} of 0, not {request.priority}")


def limit_of(request: Request, config: CoreConfig, memory: Allocator) -> int | Rejected:
    """Length, prompt and output, at which each sequence of the request ends."""
    prompt, width = request.num_prompt, request.num_sequences
    limits = config.scheduler
    pool = config.memory.num_blocks * config.memory.block_size
    if prompt < 1:
        return Rejected("empty_prompt", "the prompt has no tokens; send at least one")
    if request.max_tokens is not None and request.max_tokens < 1:
        return Rejected("bad_max_tokens", "max_tokens must be at least 1")
    if not 1 <= width <= limits.max_batch:
        return Rejected(
            "bad_num_sequences", f"n must be between 1 and {limits.max_batch}, the batch limit"
        )
    most = request.max_tokens or 1
    asked = f"{most} more" if width == 1 else f"{width} times {most} more"
    if prompt + most > limits.max_context:
        return Rejected(
            "context_exceeded",
            f"the prompt has {prompt} tokens and asks for {most} more, "
            f"but the context holds {limits.max_context}",
        )
    # The last token is never fed back, so it takes no position.
    if not memory.could_hold(prompt, prompt + most - 1, width):
        return Rejected(
            "pool_exceeded",
            f"the prompt has {prompt} tokens and asks for {asked}, but the KV pool holds {pool}",
        )
    if request.max_tokens is not None:
        return prompt + most
    return min(limits.max_context, memory.longest(prompt, width) + 1)
