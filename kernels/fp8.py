"""e4m3 (4 exponent bits, 3 of mantissa, no infinities) by integer arithmetic, for places without the conversion: the interpreter's
stores, and loads on sm_80. Knows one number format and nothing else.

Source: OCP 8-bit floating point specification, revision 1.0, section 5 (E4M3).
"""

import triton
import triton.language as tl

E4M3_MAX = tl.constexpr(448.0)


@triton.jit
def decode_e4m3(byte):
    """The value of e4m3 bytes (uint8) as fp16, exactly. NaN, which `encode_e4m3` never makes of a number, reads as 480."""
    wide = byte.to(tl.uint16)
    # the same fields in fp16 carry a bias of 15 where e4m3 has 7: 2^8 too small, subnormals included
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def encode_e4m3(x):
    """The e4m3 byte (uint8) nearest to fp32 `x`, ties to even, values beyond 448 clamped to it; NaN gives NaN (0x7F)."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = tl.minimum(tl.abs(x), E4M3_MAX)
    mag_bits = magnitude.to(tl.uint32, bitcast=True)
    # normal: add half of the last kept place, minus one unless that place is odd, then shift the bias from 127 to 7
    rounded = (mag_bits + 0x7FFFF + ((mag_bits >> 20) & 1)) >> 20
    normal = rounded - (120 << 3)
    # below 2^-6 the spacing is 2^-9: adding 2^14 leaves exactly that spacing in fp32, and the sum rounds for us
    small = (magnitude + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0.015625, small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (sign | code).to(tl.uint8)
