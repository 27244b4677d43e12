"""Whether a core's settings fit a model runner, and which field of a request is at fault where the core refuses it."""

from engine.core.config import CoreConfig
from engine.core.errors import ConfigError, RequestError
from engine.core.plan import Rejected
from engine.executor import Executor
from engine.requests import Generation


def check_fit(executor: Executor, config: CoreConfig) -> None:
    """Whether the core asks for no more than the runner has.

    Raises:
        ConfigError: it does.
    """
    memory = config.memory
    if (memory.num_blocks, memory.block_size) != (executor.num_blocks, executor.block_size):
        raise ConfigError(
            f"the core is set to {memory.num_blocks} blocks of {memory.block_size} positions, "
            f"but the model runner has {executor.num_blocks} of {executor.block_size}"
        )
    if memory.host_blocks > executor.host_blocks:
        raise ConfigError(
            f"the core is set to swap to {memory.host_blocks} host blocks, but the model runner has {executor.host_blocks}"
        )
    if config.scheduler.max_context > executor.max_context:
        raise ConfigError(
            f"max_context is {config.scheduler.max_context}, but the model holds at most {executor.max_context}"
        )


def check_tokens(generation: Generation, vocab_size: int) -> None:
    """Whether all tokens of the prompt are in the vocabulary.

    Raises:
        RequestError: one is not.
    """
    prompt = generation.prompt
    if len(prompt) and not 0 <= int(prompt.min()) <= int(prompt.max()) < vocab_size:
        raise RequestError(
            f"the prompt has a token id outside 0 to {vocab_size - 1}",
            param="prompt",
            code="token_out_of_range",
        )


def refusal(rejected: Rejected, generation: Generation) -> RequestError:
    """What the core's refusal of `generation` means to whoever sent it."""
    if rejected.code == "bad_num_sequences":
        param = "n"
    elif rejected.code == "bad_max_tokens":
        param = "max_tokens"
    elif rejected.code == "empty_prompt" or generation.max_tokens in (None, 1):
        param = "prompt"
    else:
        param = "max_tokens"
    return RequestError(rejected.message, param=param, code=rejected.code)
