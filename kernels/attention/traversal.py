"""The traversal: walks a block table tile by tile with an online softmax. Knows pages and tiles; knows no rule.

One program computes M rows for one KV head: consecutive query tokens of one sequence times the query heads that share that KV head.
It reads the tiles of N keys that the rule's span covers, or its share of them when the keys are split among programs.
Invariants: a key outside the span, at or beyond the sequence's length, is never loaded, so that what a free slot holds (NaN
included) never matters; a row that sees nothing gives zeros, and -inf as its logarithm of the sum.
Source: FlashAttention-2 (arXiv 2307.08691, section 3.1); split-KV as in Flash-Decoding.
"""

import triton
import triton.language as tl

from kernels.fp8 import decode_e4m3

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_kv(pointers, mask, dtype: tl.constexpr, KV_FORM: tl.constexpr):
    """A tile of K or V in the dtype of the product; masked elements are 0. KV_FORM: "same", "fp8" or "bytes" (fp8 by hand)."""
    raw = tl.load(pointers, mask=mask, other=0.0)  # wide
    value = decode_e4m3(raw) if KV_FORM == "bytes" else raw
    return value.to(dtype)


@triton.jit
def attend_kernel(
    out_ptr,  # [num_tokens, heads, D] result; where SPLIT fp32 [tiles, kv_heads, splits, M, D] partial results
    lse_ptr,  # fp32 [tiles, kv_heads, splits, M] log of the sum of exponentials; written where SPLIT
    q_ptr,  # [num_tokens, heads, D], token stride given, heads and D contiguous
    k_ptr,  # [num_blocks, kv_heads, BLOCK_SIZE, D]; contiguous build: [rows, kv_heads, BLOCK_SIZE, D]
    v_ptr,  # as K
    k_scale_ptr,  # fp32 [kv_heads]; read where KV_FORM is not "same"
    v_scale_ptr,  # as k_scale
    table_ptr,  # int32 [rows, max_blocks]; not read by the contiguous build
    tile_seq_ptr,  # int32 [tiles] sequence of each tile of queries, -1 for none
    tile_token_ptr,  # int32 [tiles] its first token, counted from the sequence's first query
    row_ptr,  # int32 [num_seqs] the sequence's row in the table
    q_start_ptr,  # int32 [num_seqs + 1] its first query among num_tokens
    kv_len_ptr,  # int32 [num_seqs] keys in the cache, those of this step's queries included
    split_tiles_ptr,  # int32 [1] tiles that one program reads at most; read where SPLIT
    rule_args,
    sm_scale,
    q_stride,
    out_stride,
    block_stride,
    table_stride,
    SPAN: tl.constexpr,
    SCORE: tl.constexpr,
    START: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of one KV head
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,  # HEAD_DIM rounded up to a power of two
    BLOCK_SIZE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    PAGED: tl.constexpr,
    SPLIT: tl.constexpr,
    KV_FORM: tl.constexpr,
    DOT: tl.constexpr,  # dtype of the products' operands
    PRECISION: tl.constexpr,
):
    """Attention of one tile of query rows over its keys, or over one share of them.

    Traffic of one program in bytes, for `rows` live rows and `keys` keys, looked up by `entries` table entries (one a tile of
    keys where BLOCK_SIZE >= N, otherwise one a key, each read from memory once; none in the contiguous build); `q`, `kv` and
    `out` are the bytes of an element, SPLIT and FP8 0 or 1. What a rule loads for itself comes on top.

        loads: 24 + 4 * SPLIT + 8 * FP8 + rows * HEAD_DIM * q + 2 * keys * HEAD_DIM * kv + 4 * entries
        stores: rows * (HEAD_DIM * out + 4 * SPLIT)
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)

    seq = tl.load(tile_seq_ptr + tile)
    if seq < 0:
        return
    token = tl.load(tile_token_ptr + tile)
    q_start = tl.load(q_start_ptr + seq)
    q_len = tl.load(q_start_ptr + seq + 1) - q_start
    kv_len = tl.load(kv_len_ptr + seq)
    row = tl.load(row_ptr + seq)

    # rows of the tile: GROUP heads a token; the last M % GROUP rows and tokens past the end are idle
    r = tl.arange(0, M)
    r_token = token + r // GROUP
    r_head = kv_head * GROUP + r % GROUP
    r_live = (r // GROUP < M // GROUP) & (r_token < q_len)
    q_pos = (kv_len - q_len + r_token)[:, None]
    d = tl.arange(0, DIM)
    d_live = d < HEAD_DIM

    # keys that the rule lets this tile see, as tiles of N: first those of the head part, then the others
    last_token = tl.minimum(token + M // GROUP, q_len) - 1
    head_end, begin, end = SPAN(
        kv_len - q_len + token, kv_len - q_len + last_token, kv_len, seq, rule_args
    )
    head_end = tl.minimum(head_end, kv_len)
    end = tl.minimum(end, kv_len)
    head_tiles = (tl.maximum(head_end, 0) + N - 1) // N
    skipped = tl.maximum(tl.maximum(begin, 0) // N - head_tiles, 0)
    num_tiles = tl.maximum((tl.maximum(end, 0) + N - 1) // N - skipped, head_tiles)

    first = 0
    limit = num_tiles
    if SPLIT:
        share = tl.load(split_tiles_ptr)
        first = split * share
        limit = tl.minimum(first + share, num_tiles)

    q = tl.load(
        q_ptr + (q_start + r_token).to(tl.int64)[:, None] * q_stride
        + r_head[:, None] * HEAD_DIM + d[None, :],
        mask=r_live[:, None] & d_live[None, :],
        other=0.0,
    ).to(DOT)  # fmt: skip
    k_scale = sm_scale
    if KV_FORM != "same":
        k_scale *= tl.load(k_scale_ptr + kv_head)

    m = tl.full([M], float("-inf"), tl.float32)
    if split == 0:
        m = tl.reshape(START(r_head[:, None], seq, rule_args), [M])
    total = tl.where(m > float("-inf"), 1.0, 0.0)
    acc = tl.zeros([M, DIM], tl.float32)
    n = tl.arange(0, N)

    for t in range(first, limit):
        start = (t + tl.where(t < head_tiles, 0, skipped)) * N
        k_pos = start + n
        n_live = (k_pos < head_end) | ((k_pos >= begin) & (k_pos < end))
        if PAGED:
            if BLOCK_SIZE >= N:  # the tile lies in one block
                block = tl.load(table_ptr + row.to(tl.int64) * table_stride + start // BLOCK_SIZE)
                base = block.to(tl.int64) * block_stride + (start % BLOCK_SIZE + n) * HEAD_DIM
            else:
                block = tl.load(
                    table_ptr + row.to(tl.int64) * table_stride + k_pos // BLOCK_SIZE,
                    mask=n_live,
                    other=0,
                )
                base = block.to(tl.int64) * block_stride + (k_pos % BLOCK_SIZE) * HEAD_DIM
        else:
            base = row.to(tl.int64) * block_stride + k_pos * HEAD_DIM
        offsets = base[:, None] + kv_head * (BLOCK_SIZE * HEAD_DIM) + d[None, :]
        live = n_live[:, None] & d_live[None, :]
        k = load_kv(k_ptr + offsets, live, DOT, KV_FORM)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * k_scale
        s = SCORE(s, q_pos, k_pos[None, :], r_head[:, None], seq, rule_args)
        s = tl.where(n_live[None, :], s, float("-inf"))

        new_m = tl.maximum(m, tl.max(s, 1))
        safe_m = tl.where(new_m > float("-inf"), new_m, 0.0) * LOG2E
        p = tl.exp2(s * LOG2E - safe_m[:, None])
        alpha = tl.exp2(m * LOG2E - safe_m)
        total = total * alpha + tl.sum(p, 1)
        m = new_m
        if KV_FORM == "same":
            v = load_kv(v_ptr + offsets, live, DOT, KV_FORM)
        else:
            # the transposed read keeps the pipeline's copies 16 bytes wide; read straight they are 8
            v = tl.trans(load_kv(v_ptr + tl.trans(offsets), tl.trans(live), DOT, KV_FORM))
        acc = acc * alpha[:, None] + tl.dot(p.to(DOT), v, input_precision=PRECISION)

    inverse = tl.where(total > 0.0, 1.0 / tl.where(total > 0.0, total, 1.0), 0.0)
    if KV_FORM != "same":
        inverse *= tl.load(v_scale_ptr + kv_head)
    acc *= inverse[:, None]
    if SPLIT:
        place = ((tile * tl.num_programs(1) + kv_head).to(tl.int64) * splits + split) * M + r
        lse = tl.where(total > 0.0, m + tl.log(tl.where(total > 0.0, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + place, lse, mask=r_live)
        o_ptrs = out_ptr + place[:, None] * HEAD_DIM + d[None, :]
        # a share that saw no key leaves only its -inf
        o_live = (r_live & (total > 0.0))[:, None] & d_live[None, :]
        tl.store(o_ptrs, acc, mask=o_live)
    else:
        place = (q_start + r_token).to(tl.int64) * out_stride + r_head * HEAD_DIM
        o_ptrs = out_ptr + place[:, None] + d[None, :]
        o_live = r_live[:, None] & d_live[None, :]
        tl.store(o_ptrs, acc.to(out_ptr.dtype.element_ty), mask=o_live)
