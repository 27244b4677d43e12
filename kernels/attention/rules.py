"""Attention rules: who sees whom, and how a score is changed. Knows positions and scores; knows no blocks and no tiles.

A rule is three compile-time functions and the run-time arguments that they read. The traversal calls

    span(first, last, kv_len, seq, args) -> (head_end, begin, end)
        scalars. Every key that some query at position `first` to `last` may see lies in [0, head_end) or [begin, end).
        It may promise too much, never too little; whole tiles outside are not read. Return 0 for an unused part.
    score(s, q_pos, k_pos, head, seq, args) -> s
        s: [M, N] fp32 scaled scores; q_pos: [M, 1], k_pos: [1, N] int32 positions; head: [M, 1] query head. -inf hides a key.
    start(head, seq, args) -> [M, 1] fp32
        a logit that takes part in the softmax but has no value; -inf for none.

`seq` is the sequence's index in the batch. Keys at or after `kv_len` are hidden by the traversal itself. A row that sees no key
gives zeros. Scores are scaled but still natural (not base 2) when a rule gets them.
"""
# ruff: noqa: D103 (the preface documents the three functions that each rule is made of)

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl


class Rule(NamedTuple):
    """What the traversal is given. `args`: tensors and numbers, the same for each of the functions."""

    span: Any
    score: Any
    start: Any
    args: tuple[Any, ...]


@triton.jit
def no_start(head, seq, args):
    return tl.full(head.shape, float("-inf"), tl.float32)


@triton.jit
def everything_span(first, last, kv_len, seq, args):
    return 0, 0, kv_len


@triton.jit
def everything_score(s, q_pos, k_pos, head, seq, args):
    return s


def everything() -> Rule:
    """Each query sees every key (encoders, cross attention)."""
    return Rule(everything_span, everything_score, no_start, ())


@triton.jit
def causal_span(first, last, kv_len, seq, args):
    return 0, 0, last + 1


@triton.jit
def causal_score(s, q_pos, k_pos, head, seq, args):
    return tl.where(k_pos <= q_pos, s, float("-inf"))


def causal() -> Rule:
    """Each query sees the keys up to its own position."""
    return Rule(causal_span, causal_score, no_start, ())


@triton.jit
def window_span(first, last, kv_len, seq, args):
    return 0, first - args[0] + 1, last + 1


@triton.jit
def window_score(s, q_pos, k_pos, head, seq, args):
    return tl.where((k_pos <= q_pos) & (q_pos - k_pos < args[0]), s, float("-inf"))


def sliding_window(window: int) -> Rule:
    """Causal, and of those keys only the last `window`, the query's own included (Mistral 7B, arXiv 2310.06825, section 2)."""
    return Rule(window_span, window_score, no_start, (window,))


@triton.jit
def alibi_score(s, q_pos, k_pos, head, seq, args):
    slope = tl.load(args[0] + head)
    return tl.where(k_pos <= q_pos, s - slope * (q_pos - k_pos).to(tl.float32), float("-inf"))


def alibi(slopes: torch.Tensor) -> Rule:
    """Causal with a penalty linear in distance (arXiv 2108.12409, section 3). slopes: [num_heads] fp32."""
    return Rule(causal_span, alibi_score, no_start, (slopes,))


@triton.jit
def soft_cap_score(s, q_pos, k_pos, head, seq, args):
    # cap * tanh(s / cap) by an exponential that cannot overflow
    e = tl.exp(tl.abs(s) * (-2.0 / args[0]))
    squeezed = args[0] * (1.0 - e) / (1.0 + e)
    capped = tl.where(s < 0, -squeezed, squeezed)
    return tl.where(k_pos <= q_pos, capped, float("-inf"))


def soft_cap(cap: float) -> Rule:
    """Causal with scores squeezed into (-cap, cap) (Gemma 2, arXiv 2408.00118, section 2)."""
    return Rule(causal_span, soft_cap_score, no_start, (float(cap),))


@triton.jit
def sinks_span(first, last, kv_len, seq, args):
    return args[1], first - args[0] + 1, last + 1


@triton.jit
def sinks_score(s, q_pos, k_pos, head, seq, args):
    near = (q_pos - k_pos < args[0]) | (k_pos < args[1])
    return tl.where((k_pos <= q_pos) & near, s, float("-inf"))


def sinks(window: int, num_sinks: int) -> Rule:
    """A sliding window that keeps the first `num_sinks` keys in sight (StreamingLLM, arXiv 2309.17453, section 3.2)."""
    return Rule(sinks_span, sinks_score, no_start, (window, num_sinks))


@triton.jit
def sink_logit_start(head, seq, args):
    return tl.load(args[0] + head).to(tl.float32)


def sink_logits(logits: torch.Tensor) -> Rule:
    """Causal with one learned logit a head in the softmax's denominator (gpt-oss model card, arXiv 2508.10925). logits: [num_heads]."""
    return Rule(causal_span, causal_score, sink_logit_start, (logits,))


@triton.jit
def prefix_span(first, last, kv_len, seq, args):
    return 0, 0, tl.maximum(last + 1, tl.load(args[0] + seq))


@triton.jit
def prefix_score(s, q_pos, k_pos, head, seq, args):
    prefix = tl.load(args[0] + seq)
    return tl.where((k_pos <= q_pos) | (k_pos < prefix), s, float("-inf"))


def prefix_lm(prefix_lens: torch.Tensor) -> Rule:
    """Causal, but a sequence's first `prefix_lens[seq]` keys are seen by all its queries (arXiv 1910.10683, section 3.2.1).

    prefix_lens: [num_seqs] int32, in batch order. Chunks must not split a prefix: keys not yet written cannot be seen.
    """
    return Rule(prefix_span, prefix_score, no_start, (prefix_lens,))
