"""Shapes of decoder-only models: what a step must compute and read, and what the KV cache stores. Knows no hardware.

Built-in shapes come from `models.toml`; others from a Hugging Face `config.json`. Parameter counts of the
built-in shapes equal those of the published checkpoints.
"""

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from engine.core.errors import ConfigError
from traces.names import find_name

Positive = Annotated[int, Meta(ge=1)]


class ModelShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder with grouped-query attention, dense or a mixture of experts in every layer."""

    name: str
    num_layers: Positive
    hidden: Positive
    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    intermediate: Positive
    vocab: Positive
    max_context: Positive
    gated_mlp: bool = True
    tied_embeddings: bool = False
    biases: bool = False
    qkv_biases: bool = False
    """On the query, key and value projections only."""
    norm_biases: bool = False
    qk_norms: bool = False
    position_embeddings: int = 0
    num_experts: int = 0
    """Of a layer; 0: dense. `intermediate` is then an expert's."""
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.experts_per_token <= self.num_experts:
            raise ValueError("experts_per_token must be between 0 and num_experts")
        if (self.num_experts == 0) != (self.experts_per_token == 0):
            raise ValueError("num_experts and experts_per_token go together")

    @property
    def mlp_params(self) -> int:
        """Weights of one MLP: a layer's, or one expert's."""
        return (3 if self.gated_mlp else 2) * self.hidden * self.intermediate

    @property
    def shared_matmul_params(self) -> int:
        """Weights of one layer that every token is multiplied with: attention, and the MLP or the router."""
        queries = self.num_heads * self.head_dim
        keys = self.num_kv_heads * self.head_dim
        attention = self.hidden * (queries + 2 * keys) + queries * self.hidden
        return attention + (self.hidden * self.num_experts or self.mlp_params)

    @property
    def layer_matmul_params(self) -> int:
        """Weights of all matrices of one layer."""
        return self.shared_matmul_params + self.num_experts * self.mlp_params

    def experts_touched(self, num_tokens: int) -> float:
        """Of one layer, the distinct experts that so many tokens are expected to choose, each independently and evenly."""
        if not self.num_experts:
            return 0.0
        missed: float = (1 - self.experts_per_token / self.num_experts) ** num_tokens
        return self.num_experts * (1 - missed)

    @property
    def head_params(self) -> int:
        """Weights of the output head: applied where a token is sampled."""
        return self.vocab * self.hidden

    @property
    def num_params(self) -> int:
        """All parameters that are stored, a tied head once."""
        norm = self.hidden * (2 if self.norm_biases else 1)
        queries = self.num_heads * self.head_dim
        keys = self.num_kv_heads * self.head_dim
        layer = self.layer_matmul_params + 2 * norm
        if self.qk_norms:
            layer += 2 * self.head_dim
        if self.biases or self.qkv_biases:
            layer += queries + 2 * keys
        if self.biases:
            layer += 2 * self.hidden + (2 if self.gated_mlp else 1) * self.intermediate
        embeddings = self.head_params * (1 if self.tied_embeddings else 2)
        positions = self.position_embeddings * self.hidden
        return self.num_layers * layer + embeddings + positions + norm

    @property
    def read_params(self) -> int:
        """Parameters that a step reads whatever its tokens: all but the embedding rows it does not look up."""
        looked_up = 0 if self.tied_embeddings else self.head_params
        return self.num_params - looked_up - self.position_embeddings * self.hidden

    def kv_bytes_per_token(self, kv_dtype_bytes: float, tensor_parallel: int = 1) -> int:
        """Bytes of keys and values that one position holds, all layers together, on all devices: more of them than KV heads keep copies."""
        copies = max(1, tensor_parallel // self.num_kv_heads)
        heads = self.num_layers * self.num_kv_heads * copies
        return int(2 * heads * self.head_dim * kv_dtype_bytes)


def built_in_models() -> dict[str, ModelShape]:
    """The shapes of `models.toml` by name."""
    text = resources.files("sim").joinpath("models.toml").read_text(encoding="utf-8")
    return {
        name: msgspec.convert({**entry, "name": name}, ModelShape)
        for name, entry in tomllib.loads(text).items()
    }


def find_model(name: str) -> ModelShape:
    """The shape of that name, or of a Hugging Face `config.json` (or a folder that holds one).

    Raises:
        ConfigError: no such model, or a config file that lacks a field or describes another kind of model.
    """
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        return load_hf_config(path)
    if path.suffix == ".json":
        raise ConfigError(f"the model file {name} does not exist")
    table, tail = built_in_models(), name.rsplit("/", maxsplit=1)[-1]
    hint = ", and the path of a Hugging Face config.json"
    # A repository's name: the owner and the kind of training say nothing of the shape.
    return find_name("model", _TRAINING.sub("", tail) or name, table, hint)


_TRAINING = re.compile(r"-(?:instruct|chat|base|hf|it)(?:-hf|-\d{4}|-v\d[\d.]*)?$", re.IGNORECASE)


class _HfConfig(Struct, kw_only=True):
    """The fields of a Hugging Face config.json that shape depends on, as they are spelled there."""

    model_type: str
    num_hidden_layers: Positive
    hidden_size: Positive
    num_attention_heads: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    intermediate_size: Positive | None = None
    ffn_dim: Positive | None = None
    word_embed_proj_dim: Positive | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    num_local_experts: Positive | None = None
    num_experts: Positive | None = None
    num_experts_per_tok: Positive | None = None
    moe_intermediate_size: Positive | None = None
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


_GATED = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
_EXPERTS = ("mixtral", "qwen3_moe")


def load_hf_config(path: Path) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes; named after its folder.

    Raises:
        ConfigError: unreadable, not JSON, a field is missing or of a wrong type, or a model type that is not known.
    """
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_HfConfig)
    except OSError as error:
        raise ConfigError(f"the model file {path} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path} does not describe a decoder that the twin knows: {error}"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if config.model_type not in (*_GATED, "opt"):
        raise ConfigError(
            f"{path}: model_type {config.model_type!r} is not known; known are {', '.join(_GATED)} and opt"
        )
    is_opt = config.model_type == "opt"
    if is_opt and config.word_embed_proj_dim not in (None, config.hidden_size):
        raise ConfigError(f"{path}: word_embed_proj_dim other than hidden_size is not known")
    intermediate = _need(path, config, _INTERMEDIATE.get(config.model_type, "intermediate_size"))
    experts = chosen = 0
    if config.model_type in _EXPERTS:
        if config.decoder_sparse_step != 1 or config.mlp_only_layers:
            raise ConfigError(f"{path}: a model with both dense and expert layers is not known")
        name = "num_local_experts" if config.model_type == "mixtral" else "num_experts"
        experts, chosen = _need(path, config, name), _need(path, config, "num_experts_per_tok")
        if chosen > experts:
            raise ConfigError(
                f"{path}: num_experts_per_tok is {chosen}, more than {name}, {experts}"
            )
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads or heads
    if heads % kv_heads:
        raise ConfigError(
            f"{path}: num_attention_heads, {heads}, is no multiple of num_key_value_heads, {kv_heads}"
        )
    if not (head_dim := config.head_dim or config.hidden_size // heads):
        raise ConfigError(
            f"{path}: hidden_size, {config.hidden_size}, is less than num_attention_heads, {heads}"
        )
    # Absent fields mean what transformers takes for that model type.
    tied = is_opt if config.tie_word_embeddings is None else config.tie_word_embeddings
    return ModelShape(
        name=path.resolve().parent.name or path.stem,
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=config.vocab_size,
        max_context=config.max_position_embeddings,
        gated_mlp=not is_opt,
        tied_embeddings=tied,
        biases=is_opt,
        qkv_biases=config.model_type == "qwen2" or bool(config.attention_bias),
        norm_biases=is_opt,
        qk_norms=config.model_type in ("qwen3", "qwen3_moe"),
        position_embeddings=config.max_position_embeddings + 2 if is_opt else 0,
        num_experts=experts,
        experts_per_token=chosen,
    )


_INTERMEDIATE = {"opt": "ffn_dim", "qwen3_moe": "moe_intermediate_size"}


def _need(path: Path, config: _HfConfig, field: str) -> int:
    value: int | None = getattr(config, field)
    if value is None:
        raise ConfigError(f"{path} lacks the field {field}")
    return value
