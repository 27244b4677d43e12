"""Sizes of a Llama-family decoder: what weights, cache and arithmetic agree on. Knows no tensors."""

from msgspec import Struct


class ModelShape(Struct, frozen=True, kw_only=True):
    """One decoder's sizes and constants, as its file states them."""

    architecture: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_context: int
    """Most positions the model was trained for."""
    rope_theta: float
    rope_scale: float = 1.0
    """Positions are divided by this before rotation (linear scaling)."""
    norm_eps: float
    tied: bool
    """The output head is the embedding matrix."""

    @property
    def qkv_size(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_size

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one position takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * element_bytes
