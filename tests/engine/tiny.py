"""Writes small random models as GGUF files."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from msgspec import Struct

from engine.models.build import kernels_are_there

VOCABULARY = 96


def own_model_cache(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Converted copies of models go below `folder`; machine code stays where it is kept, or each run would compile it anew."""
    kernels_are_there()
    patch.setenv("KILBURN_CACHE", str(folder / "cache"))


class Tiny(Struct, frozen=True, kw_only=True):
    """What to write. The defaults are a model that every quantised type can hold (rows of 256)."""

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    hidden: int = 256
    ffn: int = 256
    context: int = 256
    tied: bool = True
    biases: bool = False
    architecture: str = "llama"
    kind: Kind = Kind.F32
    seed: int = 0
    extra: tuple[str, ...] = ()
    """Names of more tensors, of 8 zeros."""
    without: tuple[str, ...] = ()
    rope_factors: bool = False
    repeat_head: bool = False
    """Store the embedding a second time as the head."""
    fields: tuple[tuple[str, int | float | str], ...] = ()
    """More metadata, without the architecture's prefix."""
    scale: float = 0.08


def write_tiny(path: Path, tiny: Tiny) -> Path:
    """Writes `tiny` to `path`."""
    rng = np.random.default_rng(tiny.seed)
    arch = tiny.architecture
    out = gguf.GGUFWriter(path, arch)
    out.add_name("tiny")
    out.add_context_length(tiny.context)
    out.add_embedding_length(tiny.hidden)
    out.add_block_count(tiny.layers)
    out.add_feed_forward_length(tiny.ffn)
    out.add_head_count(tiny.heads)
    out.add_head_count_kv(tiny.kv_heads)
    out.add_key_length(tiny.head_size)
    out.add_value_length(tiny.head_size)
    out.add_rope_dimension_count(tiny.head_size)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(1e-5)
    for key, value in tiny.fields:
        add = {int: out.add_uint32, float: out.add_float32, str: out.add_string}[type(value)]
        add(f"{arch}.{key}", value)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    out.add_token_types([3] * 3 + [1] * (VOCABULARY - 3))
    out.add_token_merges(["t 1", "t 2"])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_add_bos_token(False)
    out.add_chat_template("{{ messages }}")

    def matrix(name: str, rows: int, columns: int) -> None:
        if name in tiny.without:
            return
        if tiny.kind.name.endswith("_K"):
            out.add_tensor(
                name, random_k_blocks(rng, tiny.kind, rows, columns), raw_dtype=tiny.kind
            )
            return
        values = (rng.standard_normal((rows, columns)) * tiny.scale).astype(np.float32)
        if tiny.kind == Kind.F32:
            out.add_tensor(name, values)
        else:
            out.add_tensor(name, gguf.quantize(values, tiny.kind), raw_dtype=tiny.kind)

    def vector(name: str, size: int, around: float) -> None:
        if name not in tiny.without:
            out.add_tensor(name, (around + rng.standard_normal(size) * 0.1).astype(np.float32))

    matrix("token_embd.weight", VOCABULARY, tiny.hidden)
    if not tiny.tied:
        matrix("output.weight", VOCABULARY, tiny.hidden)
    vector("output_norm.weight", tiny.hidden, 1)
    for i in range(tiny.layers):
        own = f"blk.{i}."
        for name, rows, columns in (
            ("attn_q", tiny.heads * tiny.head_size, tiny.hidden),
            ("attn_k", tiny.kv_heads * tiny.head_size, tiny.hidden),
            ("attn_v", tiny.kv_heads * tiny.head_size, tiny.hidden),
            ("attn_output", tiny.hidden, tiny.heads * tiny.head_size),
            ("ffn_gate", tiny.ffn, tiny.hidden),
            ("ffn_up", tiny.ffn, tiny.hidden),
            ("ffn_down", tiny.hidden, tiny.ffn),
        ):
            matrix(f"{own}{name}.weight", rows, columns)
            if tiny.biases and name.startswith("attn"):
                vector(f"{own}{name}.bias", rows, 0)
        vector(own + "attn_norm.weight", tiny.hidden, 1)
        vector(own + "ffn_norm.weight", tiny.hidden, 1)
    for name in tiny.extra:
        out.add_tensor(name, np.zeros(8, np.float32))
    if tiny.rope_factors:
        out.add_tensor(
            "rope_freqs.weight", np.linspace(1, 8, tiny.head_size // 2).astype(np.float32)
        )
    if tiny.repeat_head:
        first = out.tensors[0]["token_embd.weight"]
        out.add_tensor("output.weight", first.tensor, raw_dtype=first.dtype)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


_HALVES = {
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
}
"""Where the float16 scales lie in a block of 256."""


def random_k_blocks(rng: np.random.Generator, kind: Kind, rows: int, columns: int) -> np.ndarray:
    """[rows, bytes] uint8: blocks with random quants and small scales, which the library reads but does not write."""
    size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // size, block_bytes), dtype=np.uint8)
    for place in _HALVES[kind]:
        scales = (rng.random((rows, columns // size, 1)) * 2e-4).astype(np.float16)
        blocks[:, :, place : place + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)
