"""Named settings of engines that people compare with: what their scheduler does by default, in the words of `ReplayConfig`."""

from typing import Any, Final

from traces.names import find_name

PRESETS: Final[dict[str, dict[str, Any]]] = {
    # vLLM V1 at its defaults: no watermark, planning ahead of execution, chunked prefill on, prompts of several requests in one step.
    "vllm": {
        "block_size": 16,
        "watermark": 0.0,
        "max_batch": 256,
        "token_budget": 2048,
        "open_plans": 2,
        "prefix_cache": True,
        "max_partial_prefills": None,
        "policy": "fcfs",
        "preemption": "recompute",
    },
}


def preset(name: str) -> dict[str, Any]:
    """The settings that `name` stands for; flags that are given beside it come first.

    Raises:
        ConfigError: no such preset.
    """
    return find_name("preset", name, PRESETS, "")
