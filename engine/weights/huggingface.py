"""Reads a checkpoint folder as Hugging Face's libraries write it: config.json, safetensors files, tokenizer.json. Knows nothing
of caches and of the engine's layout.

Tensors are offered under GGUF's names; `called` gives back the file's own.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from engine.core.errors import WeightsError
from engine.models.shape import ModelShape
from engine.weights.source import Blocks
from engine.weights.tokenizer_data import TokenizerData

FAMILIES: Final = ("llama", "mistral", "qwen2")
"""Supported values of `model_type`."""

_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OWN_PARTS = {theirs: own for own, theirs in _PARTS.items()}
_OWN_WHOLE = {theirs: own for own, theirs in _WHOLE.items()}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_FACTORS = "rope_freqs.weight"
_CONTROL, _USER_DEFINED, _NORMAL = 3, 4, 1


class HuggingFaceSource:
    """A checkpoint folder opened for conversion; implements `engine.weights.source.Source`."""

    interleaved_rotary = False

    def __init__(self, folder: Path) -> None:
        """Opens and checks `folder`.

        Raises:
            WeightsError: a file is missing or damaged, or the model is of an unsupported kind.
        """
        self.title = folder.name
        self._folder = folder
        self._config = _json(folder / "config.json")
        family = self._config.get("model_type")
        if family not in FAMILIES:
            raise WeightsError(
                f"{folder.name}: model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}"
            )
        self._tensors: dict[str, Any] = {}
        """Opened file by GGUF name."""
        for path in sorted(folder.glob("*.safetensors")):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise WeightsError(f"{path}: is not a whole safetensors file ({error})") from error
            self._tensors |= {_canonical(name): file for name in file.keys()}  # type: ignore[no-untyped-call]  # noqa: SIM118
        if not self._tensors:
            raise WeightsError(f"{folder}: holds no safetensors file")
        try:
            self._factors, scale = _rotary_scaling(self._config)
            self.shape = self._read_shape(str(family), scale)
            self.tokenizer = _tokenizer(folder, self._config, self.shape.vocab_size)
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(
                f"{folder.name}: config.json or tokenizer.json is not as expected ({error!r})"
            ) from error
        extra = () if self._factors is None else (_FACTORS,)
        self.names = frozenset((*self._tensors, *extra))

    def called(self, name: str) -> str:
        """The file's own name of a tensor."""
        if match := _BLOCK.fullmatch(name):
            layer, part, kind = match.groups()
            return f"model.layers.{layer}.{_OWN_PARTS.get(part, part)}.{kind}"
        return _OWN_WHOLE.get(name, name)

    def size(self, name: str) -> tuple[int, ...]:
        """[rows, columns] or [elements] of a tensor."""
        if name == _FACTORS and self._factors is not None:
            return self._factors.shape
        return tuple(self._tensors[name].get_slice(self.called(name)).get_shape())

    def read(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32."""
        if name == _FACTORS and self._factors is not None:
            return self._factors
        values: torch.Tensor = self._tensors[name].get_tensor(self.called(name))
        if not values.is_floating_point() or values.element_size() == 1:
            raise WeightsError(
                f"the tensor {self.called(name)} has type {values.dtype}, which is not supported; "
                "supported are float32, float16 and bfloat16"
            )
        return values.float().numpy()

    def blocks(self, name: str) -> Blocks | None:
        """None: these files hold no quantised blocks."""
        return None

    def _read_shape(self, family: str, scale: float) -> ModelShape:
        c = self._config
        if (activation := c.get("hidden_act", "silu")) != "silu":
            raise WeightsError(
                f"{self.title}: hidden_act {activation!r} is not supported; supported is silu"
            )
        heads, context = int(c["num_attention_heads"]), int(c["max_position_embeddings"])
        window = c.get("sliding_window") if c.get("use_sliding_window", True) else None
        return ModelShape(
            architecture=family,
            vocab_size=int(c["vocab_size"]),
            num_layers=int(c["num_hidden_layers"]),
            hidden_size=int(c["hidden_size"]),
            ffn_size=int(c["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(c.get("num_key_value_heads") or heads),
            head_size=int(c.get("head_dim") or c["hidden_size"] // heads),
            max_context=min(context, int(window or context)),
            rope_theta=float(_rotary(c).get("rope_theta") or c.get("rope_theta") or 10000.0),
            rope_scale=scale,
            norm_eps=float(c["rms_norm_eps"]),
            tied=bool(c.get("tie_word_embeddings", False)),
        )


def _canonical(name: str) -> str:
    """GGUF's name of a tensor, or in its manner where GGUF has none."""
    if match := _LAYER.fullmatch(name):
        layer, part, kind = match.groups()
        return f"blk.{layer}.{_PARTS.get(part, part)}.{kind}"
    return _WHOLE.get(name, name)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise WeightsError(f"{path.parent}: holds no {path.name}") from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise WeightsError(f"{path}: must hold a JSON object")
    return value


def _rotary(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rotary_scaling(config: dict[str, Any]) -> tuple[NDArray[np.float32] | None, float]:
    """What each frequency is divided by, or None, and what positions are divided by.

    Source of `llama3`: The Llama 3 Herd of Models, section 3.4.2, and the reference code released with Llama 3.1: long waves
    are stretched by the factor, short ones stay, and those between are blended.

    Raises:
        WeightsError: the kind of scaling is not supported.
    """
    rotary = _rotary(config)
    kind = rotary.get("rope_type") or rotary.get("type") or "default"
    if kind == "default":
        return None, 1.0
    if kind == "linear":
        return None, float(rotary["factor"])
    if kind != "llama3":
        raise WeightsError(
            f"rope_type {kind!r} is not supported; supported are default, linear and llama3"
        )
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = float(rotary.get("rope_theta") or config["rope_theta"])
    low, high = float(rotary["low_freq_factor"]), float(rotary["high_freq_factor"])
    waves = 2 * math.pi * theta ** (np.arange(head_size // 2) * 2 / head_size)
    turns = float(rotary["original_max_position_embeddings"]) / waves
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / float(rotary["factor"]))).astype(np.float32), 1.0


def _tokenizer(folder: Path, config: dict[str, Any], vocab_size: int) -> TokenizerData:
    """Tokens, merges and special ids of tokenizer.json, padded with unused tokens to the model's vocabulary."""
    whole = _json(folder / "tokenizer.json")
    settings = folder / "tokenizer_config.json"
    extra = _json(settings) if settings.exists() else {}
    model = whole["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise WeightsError(
            f"{folder.name}: only byte-level BPE is read from tokenizer.json; take a GGUF file of this model"
        )
    tokens = [f"<unused {i}>" for i in range(vocab_size)]
    types = [_CONTROL] * vocab_size
    for token, i in model["vocab"].items():
        tokens[i], types[i] = token, _NORMAL
    for added in whole.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = _CONTROL if added.get("special") else _USER_DEFINED
    ids = {token: i for i, token in enumerate(tokens)}
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return TokenizerData(
        model="gpt2",
        pre_tokenizer=_pre_tokenizer(whole.get("pre_tokenizer"), folder.name),
        tokens=tokens,
        types=types,
        merges=[m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        scores=[],
        bos_id=config.get("bos_token_id"),
        eos_id=ends[0] if ends else None,
        eot_id=ends[-1] if ends else None,
        unknown_id=ids.get(str(extra.get("unk_token"))),
        add_bos=_adds_bos(whole, extra),
        add_space_prefix=False,
        chat_template=_chat_template(folder, extra),
    )


def _pre_tokenizer(rule: dict[str, Any] | None, name: str) -> str:
    """GGUF's name for a rule of tokenizer.json.

    Raises:
        WeightsError: the rule is not one of those that are known.
    """
    steps = (rule or {}).get("pretokenizers") or [rule or {}]
    kinds = [step.get("type") for step in steps]
    if not any(step.get("add_prefix_space") for step in steps):
        if kinds == ["ByteLevel"]:
            return "gpt-2"
        if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
            return "smollm"
        if kinds == ["Split", "ByteLevel"]:
            pattern = steps[0]["pattern"].get("Regex", "")
            if r"\p{N}{1,3}" in pattern:
                return "llama-bpe"
            if r"|\p{N}|" in pattern:
                return "qwen2"
    raise WeightsError(
        f"{name}: the pre_tokenizer of tokenizer.json is not one of those known (GPT-2, SmolLM, Llama 3, Qwen 2); "
        "take a GGUF file of this model"
    )


def _adds_bos(whole: dict[str, Any], extra: dict[str, Any]) -> bool:
    """Whether texts begin with the BOS token: said outright, or by a template that puts a special token first."""
    if "add_bos_token" in extra:
        return bool(extra["add_bos_token"])
    rule = whole.get("post_processor") or {}
    rules = rule.get("processors") or [rule]
    return any("SpecialToken" in (step.get("single") or [{}])[0] for step in rules)


def _chat_template(folder: Path, extra: dict[str, Any]) -> str | None:
    template = folder / "chat_template.jinja"
    if template.exists():
        return template.read_text()
    found = extra.get("chat_template")
    if isinstance(found, list):
        found = next((t["template"] for t in found if t.get("name") == "default"), None)
    return found
