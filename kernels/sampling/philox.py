"""Counter-based random numbers. Knows keys and counters; keeps no state, so that a draw depends on nothing else.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 4.3, Philox 4x32 with 10 rounds.
"""

import triton
import triton.language as tl


@triton.jit
def philox(key, counter):
    """The first two 32-bit words for a 64-bit key and a 64-bit counter (its upper half zero), as uint64."""
    mask = tl.full([], 0xFFFFFFFF, tl.uint64)
    k0 = key.to(tl.uint64) & mask
    k1 = key.to(tl.uint64) >> 32
    x0 = counter.to(tl.uint64) & mask
    x1 = counter.to(tl.uint64) >> 32
    x2 = x0 & 0
    x3 = x0 & 0
    for _ in tl.static_range(10):
        first = x0 * 0xD2511F53
        second = x2 * 0xCD9E8D57
        x0 = (second >> 32) ^ x1 ^ k0
        x1 = second & mask
        x2 = (first >> 32) ^ x3 ^ k1
        x3 = first & mask
        k0 = (k0 + 0x9E3779B9) & mask
        k1 = (k1 + 0xBB67AE85) & mask
    return x0, x1


@triton.jit
def uniform(key, counter):
    """A float64 in [0, 1): 53 bits of the two words."""
    high, low = philox(key, counter)
    bits = ((high << 32) | low) >> 11
    return bits.to(tl.float64) * (1.0 / 9007199254740992.0)
