"""How one layer's KV lies in memory, and what of it the kernels accept. Knows shapes and strides; runs nothing.

Blocks are head-major: [num_blocks, kv_heads, block_size, head_dim], so that one KV head's part of a block is one contiguous run.
"""

from typing import NamedTuple

import torch

HEAD_DIMS = (64, 80, 96, 128, 256)
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
E4M3 = torch.float8_e4m3fn


class KVCache(NamedTuple):
    """One layer's pool. k, v: [num_blocks, kv_heads, block_size, head_dim], each block contiguous; scales: fp32 [kv_heads] for fp8.

    A stored e4m3 number stands for itself times its head's scale.
    """

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None


def check_cache(cache: KVCache, dtype: torch.dtype, head_dim: int) -> None:
    """Raises ValueError unless the kernels can use this cache with queries of `dtype` and `head_dim`."""
    _, _, block_size, kv_dim = cache.k.shape
    if head_dim not in HEAD_DIMS or kv_dim != head_dim:
        raise ValueError(
            f"head_dim must be one of {HEAD_DIMS} in Q and KV, got {head_dim} and {kv_dim}"
        )
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"Q must be fp16, bf16 or fp32, got {dtype}")
    if cache.k.dtype not in (dtype, E4M3) or cache.v.dtype != cache.k.dtype:
        raise ValueError(f"KV must be {dtype} or e4m3, got {cache.k.dtype} and {cache.v.dtype}")
    if cache.k.dtype == E4M3 and (cache.k_scale is None or cache.v_scale is None):
        raise ValueError("e4m3 KV needs k_scale and v_scale")
    inner = (block_size * head_dim, head_dim, 1)
    if cache.k.stride() != cache.v.stride() or cache.k.stride()[1:] != inner:
        raise ValueError(
            f"each block of K and V must be contiguous, got strides {cache.k.stride()}"
        )
    if (
        cache.k.stride(0) * cache.k.element_size() % 16
        or cache.k.data_ptr() % 16
        or cache.v.data_ptr() % 16
    ):
        raise ValueError("blocks of K and V must begin at multiples of 16 bytes")
