"""What is shipped: the builds of each kernel that the offline check compiles for every architecture. Knows shapes; runs nothing.

A build is a kernel with its compile-time arguments and argument types, made by the same functions that launches use. Launches may
meet other shapes; these stand for them: every head size, dtype and block size, every rule, both uses of the traversal.
"""

from typing import Any, NamedTuple

import torch

from kernels.attention import launch, rules
from kernels.attention.merge import merge_kernel
from kernels.attention.tiles import decode_tile, prefill_tile
from kernels.attention.traversal import attend_kernel
from kernels.cache import blocks, table, write
from kernels.layout import E4M3
from kernels.sampling.adjust import adjust_constants, adjust_kernel
from kernels.sampling.choose import draw_constants, draw_kernel
from kernels.sampling.draw import CHUNK
from kernels.sampling.weigh import weigh_constants, weigh_kernel

NAMES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    E4M3: "fp8e4nv",
    torch.uint8: "u8",
}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


class Build(NamedTuple):
    """One compilation.

    signature: argument to Triton type, run-time arguments only, in order; constants: compile-time arguments and build options;
    aligned: arguments that are multiples of 16 (addresses in bytes, numbers as they are), as launches on whole tensors find them.
    """

    name: str
    kernel: Any
    signature: dict[str, Any]
    constants: dict[str, Any]
    aligned: tuple[str, ...]


def build(name: str, kernel: Any, signature: dict[str, Any], constants: dict[str, Any]) -> Build:
    """A build in which pointers, strides and row lengths are aligned."""
    names = ("words", "vocab")
    aligned = tuple(x for x in signature if x.endswith(("_ptr", "_stride")) or x in names)
    return Build(name, kernel, signature, constants, aligned)


def pointer(dtype: torch.dtype) -> str:
    """Triton's name for a pointer to `dtype`."""
    return "*" + NAMES[dtype]


def attend(
    use: str,
    capability: int,
    *,
    dtype: torch.dtype = BF16,
    kv: torch.dtype | None = None,
    head_dim: int = 128,
    block_size: int = 16,
    group: int = 4,
    rule: rules.Rule | None = None,
    rule_name: str = "causal",
    rule_types: tuple[str, ...] = (),
    paged: bool = True,
) -> Build:
    """A build of the traversal. use: "decode" (keys split) or "prefill" (not split)."""
    kv = kv or dtype
    form = launch.kv_form(kv, capability)
    split = use == "decode"
    sizes = (head_dim, group, dtype.itemsize, kv.itemsize)
    tile = decode_tile(*sizes) if split else prefill_tile(*sizes, capability)
    stored = pointer(torch.uint8 if form == "bytes" else kv)
    signature = {
        "out_ptr": "*fp32" if split else pointer(dtype),
        "lse_ptr": "*fp32",
        "q_ptr": pointer(dtype),
        "k_ptr": stored,
        "v_ptr": stored,
        "k_scale_ptr": "*fp32",
        "v_scale_ptr": "*fp32",
        **dict.fromkeys(
            (
                "table_ptr",
                "tile_seq_ptr",
                "tile_token_ptr",
                "row_ptr",
                "q_start_ptr",
                "kv_len_ptr",
                "split_tiles_ptr",
            ),
            "*i32",
        ),
        "rule_args": rule_types,
        "sm_scale": "fp32",
        **dict.fromkeys(("q_stride", "out_stride", "block_stride", "table_stride"), "i32"),
    }
    constants = launch.constants(
        rule or rules.causal(), tile, group=group, head_dim=head_dim, block_size=block_size,
        dtype=dtype, form=form, split=split, paged=paged,
    )  # fmt: skip
    layout = f"b{block_size}" if paged else "contiguous"
    name = f"{use}-{rule_name}-{NAMES[dtype]}-{NAMES[kv]}-d{head_dim}-{layout}-g{group}"
    return build(name, attend_kernel, signature, constants)


def merge(head_dim: int, dtype: torch.dtype) -> Build:
    """A build of the reduction over shares."""
    tile = decode_tile(head_dim, 4, dtype.itemsize, dtype.itemsize)
    signature = {
        "out_ptr": pointer(dtype), "partial_ptr": "*fp32", "lse_ptr": "*fp32",
        "tile_seq_ptr": "*i32", "tile_token_ptr": "*i32", "q_start_ptr": "*i32",
        "out_stride": "i32", "splits": "i32",
    }  # fmt: skip
    constants = launch.merge_constants(tile, 4, head_dim, 32)
    return build(f"merge-{NAMES[dtype]}-d{head_dim}", merge_kernel, signature, constants)


def write_cache(head_dim: int, dtype: torch.dtype, fp8: bool) -> Build:
    """A build of the cache write."""
    stored = "*u8" if fp8 else pointer(dtype)
    signature = {
        **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), pointer(dtype)),
        "k_pool_ptr": stored, "v_pool_ptr": stored, "slot_ptr": "*i32", "position_ptr": "*i32",
        "rotation_ptr": "*fp32", "k_scale_ptr": "*fp32", "v_scale_ptr": "*fp32",
        **dict.fromkeys(("num_tokens", "q_stride", "k_stride", "v_stride", "block_stride"), "i32"),
    }  # fmt: skip
    constants = write.write_constants(32, head_dim, 16, dtype, fp8)
    name = f"write-{NAMES[dtype]}-{'e4m3' if fp8 else NAMES[dtype]}-d{head_dim}"
    return build(name, write.write_kernel, signature, constants)


def move(name: str, dst_ids: bool, src_ids: bool) -> Build:
    """A build of the block mover."""
    signature = {
        "dst_ptr": "*i32", "src_ptr": "*i32", "dst_id_ptr": "*i32", "src_id_ptr": "*i32",
        "words": "i32", "dst_plane_stride": "i64", "dst_block_stride": "i64", "src_plane_stride": "i64",
        "src_block_stride": "i64",
    }  # fmt: skip
    return build(name, blocks.move_kernel, signature, blocks.move_constants(dst_ids, src_ids))


def table_delta() -> Build:
    """The build of the block-table update."""
    signature = {"table_ptr": "*i32", "delta_ptr": "*i32", "num": "i32", "table_stride": "i32"}
    return build("table-delta", table.delta_kernel, signature, dict(table.DELTA_CONSTANTS))


def sampling() -> list[Build]:
    """The builds of the sampling kernels, for bf16 logits of 128 Ki tokens."""
    chunks = 32
    adjust = {
        "logits_ptr": "*bf16", "z_ptr": "*fp32", "top_ptr": "*fp32", "top_token_ptr": "*i32", "low_ptr": "*fp32",
        "raw_top_ptr": "*fp32", "raw_sum_ptr": "*fp32", "repetition_ptr": "*fp32", "presence_ptr": "*fp64",
        "frequency_ptr": "*fp64", "count_row_ptr": "*i32", "counts_ptr": "*i32", "bias_start_ptr": "*i32",
        "bias_token_ptr": "*i32", "bias_value_ptr": "*fp32", "vocab": "i32", "logits_stride": "i32",
    }  # fmt: skip
    weigh = {
        "z_ptr": "*fp32", "w_ptr": "*fp64", "top_ptr": "*fp32", "temperature_ptr": "*fp32", "vocab": "i32",
    }  # fmt: skip
    drawing = {
        "token_ptr": "*i32", "logprob_ptr": "*fp32", "finite_ptr": "*i32", "logits_ptr": "*bf16", "z_ptr": "*fp32",
        "w_ptr": "*fp64", "top_ptr": "*fp32", "top_token_ptr": "*i32", "low_ptr": "*fp32", "raw_top_ptr": "*fp32",
        "raw_sum_ptr": "*fp32", "temperature_ptr": "*fp32", "top_k_ptr": "*i32", "top_p_ptr": "*fp32",
        "min_p_ptr": "*fp32", "seed_ptr": "*i64", "counter_ptr": "*i64", "vocab": "i32", "chunks": "i32",
        "logits_stride": "i32",
    }  # fmt: skip
    return [
        build("sample-adjust", adjust_kernel, adjust, adjust_constants(CHUNK)),
        build("sample-weigh", weigh_kernel, weigh, weigh_constants(CHUNK, chunks)),
        build("sample-draw", draw_kernel, drawing, draw_constants(CHUNK, chunks)),
    ]


def all_rules() -> list[tuple[str, rules.Rule, tuple[str, ...]]]:
    """(name, rule, Triton types of its arguments) of each rule but plain causal."""
    floats = torch.zeros(1)
    ints = torch.zeros(1, dtype=torch.int32)
    return [
        ("everything", rules.everything(), ()),
        ("window", rules.sliding_window(4096), ("i32",)),
        ("alibi", rules.alibi(floats), ("*fp32",)),
        ("softcap", rules.soft_cap(50.0), ("fp32",)),
        ("sinks", rules.sinks(4096, 4), ("i32", "i32")),
        ("sinklogits", rules.sink_logits(floats), ("*fp32",)),
        ("prefix", rules.prefix_lm(ints), ("*i32",)),
    ]


def shipped(capability: int) -> list[Build]:
    """The matrix for one architecture (10 * major + minor), at most 60 builds, each with a name of its own."""
    c = capability
    builds = []
    for head_dim in (64, 80, 96, 128, 256):
        for dtype, kv in ((FP16, FP16), (BF16, E4M3), (FP32, FP32)):
            builds += [
                attend(use, c, dtype=dtype, kv=kv, head_dim=head_dim)
                for use in ("decode", "prefill")
            ]
    builds += [attend("decode", c, block_size=b) for b in (8, 16, 32, 64, 128, 256)]
    builds += [attend("prefill", c, block_size=b) for b in (16, 256)]
    builds += [attend("decode", c, group=g) for g in (1, 8)]
    builds += [attend(use, c, paged=False, block_size=8192) for use in ("decode", "prefill")]
    builds += [attend("decode", c, rule=r, rule_name=n, rule_types=t) for n, r, t in all_rules()]
    builds += [merge(128, BF16)]
    builds += [
        write_cache(128, BF16, False),
        write_cache(128, BF16, True),
        write_cache(80, FP16, False),
    ]
    builds += [move("copy", True, True), move("gather", False, True), move("scatter", True, False)]
    builds += [table_delta(), *sampling()]
    return builds
