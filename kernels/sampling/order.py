"""Finds where a row's tokens, from the largest logit down, reach a count or a mass, without sorting. Knows numbers; no parameters.

Bisection over the order-preserving integers of the logits, from values present to values present: each pass over the row at
least halves the interval of keys, and it ends when one key is left.
"""

import triton
import triton.language as tl


@triton.jit
def key_of(z):
    """int64 keys in the order of fp32 `z`; -0 and 0 have one key."""
    bits = z.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits >= 0, bits, -(bits + 2147483648))


@triton.jit
def reach(z_ptr, w_ptr, vocab, low, high, target, COUNT: tl.constexpr, C: tl.constexpr):
    """The largest key t of the row so that tokens with keys of t or more reach `target`.

    z_ptr: fp32 logits of the row; w_ptr: fp64 weights, ignored where COUNT (each token then weighs 1); low: the smallest key
    that t may be, with which the target is reached; high: the row's largest key.
    """
    while low < high:
        middle = low + (high - low + 1) // 2
        reached = tl.full([], 0.0, tl.float64)
        above = high
        below = low
        for first in range(0, vocab, C):
            token = first + tl.arange(0, C)
            live = token < vocab
            key = key_of(tl.load(z_ptr + token, mask=live, other=float("-inf")))
            if COUNT:
                weight = tl.full([C], 1.0, tl.float64)
            else:
                weight = tl.load(w_ptr + token, mask=live, other=0.0)
            hit = live & (key >= middle)
            reached += tl.sum(tl.where(hit, weight, 0.0), 0)
            above = tl.minimum(above, tl.min(tl.where(hit, key, high), 0))
            below = tl.maximum(below, tl.max(tl.where(live & (key < middle), key, low), 0))
        enough = reached >= target
        low = tl.where(enough, above, low)
        high = tl.where(enough, high, below)
    return low
