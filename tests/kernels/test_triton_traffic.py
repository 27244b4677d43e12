"""The bytes that kernels' docstrings promise are the bytes that their programs touch."""

import numpy as np
import pytest
import torch

from kernels.attention import rules
from kernels.attention.merge import merge_kernel
from kernels.attention.schedule import query_tiles
from kernels.attention.traversal import attend_kernel
from kernels.cache.blocks import WORDS, copy_blocks, gather_blocks, move_kernel
from kernels.cache.table import apply_delta, delta_kernel, last_changes
from kernels.cache.write import rotation_table, write_kernel, write_kv
from kernels.layout import E4M3, KVCache
from kernels.mode import INTERPRETED
from kernels.sampling.adjust import adjust_kernel
from kernels.sampling.choose import draw_kernel
from kernels.sampling.draw import draw
from kernels.sampling.weigh import weigh_kernel
from tests.kernels.device import ints
from tests.kernels.paged_scene import SMALL, make_scene, run
from tests.kernels.test_triton_sampling import columns, logits_of
from tests.kernels.traffic_counter import counted, documented
from tests.reference.token_draw import Params

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="bytes are counted by the interpreter")


@pytest.mark.parametrize(
    ("block_size", "fp8", "kv_len", "rule", "keys"),
    [
        (8, False, 77, rules.causal(), 77),
        (16, True, 77, rules.causal(), 77),
        (64, False, 77, rules.causal(), 77),
        (8, False, 200, rules.sliding_window(20), 20),
        (8, False, 200, rules.sinks(20, 4), 24),
    ],
)
def test_attention_reads_each_visible_key_once(monkeypatch, block_size, fp8, kv_len, rule, keys):
    scene = make_scene(
        [(1, kv_len)], block_size=block_size, kv_heads=1, dtype=torch.float16, fp8=fp8
    )
    with counted(monkeypatch) as traffic:
        run(scene, rule)
    entries = keys if block_size < SMALL.n else -(-kv_len // SMALL.n)
    shape = {"HEAD_DIM": 64, "q": 2, "kv": 1 if fp8 else 2, "out": 2, "SPLIT": 0, "FP8": int(fp8)}
    want = documented(attend_kernel, rows=3, keys=keys, entries=entries, **shape)
    assert (traffic.loads, traffic.stores) == want


@pytest.mark.parametrize(
    ("rule", "lengths", "tiles"),
    [
        (rules.causal(), (1, 200), [7]),
        (rules.causal(), (64, 64), [1, 1, 1, 2, 2, 2, 2]),
        (rules.causal(), (20, 90), [3, 3]),
        (rules.everything(), (20, 90), [3, 3]),
        (rules.sliding_window(20), (1, 200), [2]),
        (rules.sliding_window(40), (20, 200), [2, 3]),
        (rules.sliding_window(9), (1, 9), [1]),
        (rules.sinks(20, 4), (1, 200), [3]),
        (rules.sinks(20, 64), (1, 200), [4]),
        (rules.sinks(20, 500), (1, 200), [7]),
        (rules.prefix_lm(ints([70])), (20, 90), [3, 3]),
        (rules.prefix_lm(ints([70])), (70, 70), [3] * 7),
    ],
)
@pytest.mark.parametrize("block_size", [8, 64])
def test_tiles_that_a_rule_hides_are_not_even_walked(monkeypatch, rule, lengths, tiles, block_size):
    """Each program loads its queries, and K and V of the tiles of 32 keys that its rule lets it see."""
    scene = make_scene([lengths], block_size=block_size, kv_heads=1)
    with counted(monkeypatch) as traffic:
        run(scene, rule)
    assert traffic.tiles == len(tiles) + 2 * sum(tiles)


@pytest.mark.parametrize(("rule", "walked"), [(rules.causal(), 7), (rules.sliding_window(40), 2)])
@pytest.mark.parametrize("block_size", [8, 64])
def test_shares_walk_each_tile_once_and_none_beyond_the_end(monkeypatch, rule, walked, block_size):
    """Four programs load queries and share the tiles of 200 keys; three merge a row each."""
    scene = make_scene([(1, 200)], block_size=block_size, kv_heads=1)
    with counted(monkeypatch) as traffic:
        run(scene, rule, force_share=2)
    assert traffic.tiles == 4 + 2 * walked + 3


def test_the_contiguous_build_looks_nothing_up(monkeypatch):
    k = torch.zeros(3, 1, 128, 64, dtype=torch.float16)
    scene = make_scene([(1, 77)], kv_heads=1, dtype=torch.float16)._replace(k=k, v=k)
    with counted(monkeypatch) as traffic:
        run(scene, rules.causal(), paged=False)
    shape = {"HEAD_DIM": 64, "q": 2, "kv": 2, "out": 2, "SPLIT": 0, "FP8": 0}
    want = documented(attend_kernel, rows=3, keys=77, entries=0, **shape)
    assert (traffic.loads, traffic.stores) == want


def test_split_keys_are_read_once_and_merged_once(monkeypatch):
    scene = make_scene([(1, 77)], block_size=64, kv_heads=1, dtype=torch.float16)
    with counted(monkeypatch) as traffic:
        run(scene, rules.causal(), force_share=1)
    shape = {"HEAD_DIM": 64, "q": 2, "kv": 2, "out": 4, "SPLIT": 1, "FP8": 0}
    loads = stores = 0
    for keys in (32, 32, 13):
        got = documented(attend_kernel, rows=3, keys=keys, entries=1, **shape)
        loads, stores = loads + got[0], stores + got[1]
    live = documented(merge_kernel, splits=3, shares=3, HEAD_DIM=64, out=2)
    assert (traffic.loads, traffic.stores) == (loads + 3 * live[0], stores + 3 * live[1])


def test_a_share_without_keys_leaves_one_number_a_row(monkeypatch):
    lone, short = make_scene([(1, 77)], kv_heads=1), make_scene([(1, 77), (1, 5)], kv_heads=1)
    stores = []
    for scene in (lone, short):
        with counted(monkeypatch) as traffic:
            run(scene, rules.causal(), force_share=1)
        stores.append(traffic.stores)
    rows, full = 3, 3 * (64 * 4 + 4)
    assert stores[1] - stores[0] == full + 2 * 4 * rows + rows * 64 * 4


def test_tiles_of_a_chunk_share_each_key_among_their_rows(monkeypatch):
    scene = make_scene([(20, 90)], block_size=64, kv_heads=1, dtype=torch.float16)
    with counted(monkeypatch) as traffic:
        run(scene, rules.causal())
    shape = {"HEAD_DIM": 64, "q": 2, "kv": 2, "out": 2, "SPLIT": 0, "FP8": 0}
    loads = stores = 0
    for token in query_tiles(np.array([0]), np.array([20]), 10)[1]:
        keys = 70 + int(token) + 10
        got = documented(attend_kernel, rows=30, keys=keys, entries=-(-keys // 32), **shape)
        loads, stores = loads + got[0], stores + got[1]
    assert (traffic.loads, traffic.stores) == (loads, stores)


@pytest.mark.parametrize("fp8", [False, True])
def test_cache_writes_touch_each_element_once(monkeypatch, fp8):
    q, k, v = (torch.zeros(19, n, 80, dtype=torch.float16) for n in (3, 2, 2))
    pool = torch.zeros(4, 2, 8, 80, dtype=E4M3 if fp8 else torch.float16)
    cache = KVCache(pool, pool.clone(), *(torch.ones(2, 2) if fp8 else ()))
    slots = [-1, *range(18)]
    with counted(monkeypatch) as traffic:
        write_kv(q, k, v, cache, ints(slots), ints(range(19)), rotation_table(19, 80, 1e4))
    shape = {
        "HEADS": 3,
        "kv_heads": 2,
        "HEAD_DIM": 80,
        "e": 2,
        "kv": 1 if fp8 else 2,
        "FP8": int(fp8),
    }
    assert (traffic.loads, traffic.stores) == documented(
        write_kernel, tokens=19, placed=18, programs=2, **shape
    )


def test_moves_and_deltas_touch_what_moves(monkeypatch):
    pool = torch.zeros(3, 6, 2, 16, 80)
    words = 2 * 16 * 80
    programs = -(-words // WORDS)
    with counted(monkeypatch) as traffic:
        copy_blocks(pool, ints([1, 2]), ints([3, 4]))
    move = documented(move_kernel, words=words, DST_IDS=1, SRC_IDS=1, programs=programs)
    assert (traffic.loads, traffic.stores) == (6 * move[0], 6 * move[1])
    with counted(monkeypatch) as traffic:
        gather_blocks(torch.zeros(2, 3, 2, 16, 80), pool, ints([1, 2]))
    move = documented(move_kernel, words=words, DST_IDS=0, SRC_IDS=1, programs=programs)
    assert (traffic.loads, traffic.stores) == (6 * move[0], 6 * move[1])
    changes = last_changes(*np.arange(3 * 7, dtype=np.int32).reshape(3, 7))
    for columns_ in (16, 1000):
        table = ints(np.zeros((9, columns_), np.int32))
        with counted(monkeypatch) as traffic:
            apply_delta(table, torch.from_numpy(changes))
        assert (traffic.loads, traffic.stores) == documented(delta_kernel, num=7)


@pytest.mark.parametrize("penalised", [False, True])
def test_sampling_reads_each_logit_as_often_as_it_says(monkeypatch, penalised):
    vocab, chunk = 300, 128
    logits = logits_of(1, 1, vocab)
    row = Params(presence=1.0 if penalised else 0.0, output=(3,), bias={5: 1.0, 6: 2.0})
    with counted(monkeypatch) as traffic:
        token = int(draw(torch.from_numpy(logits), columns([row], vocab), chunk=chunk).token)
    piece = min(chunk, vocab - token // chunk * chunk)
    parts = [
        documented(adjust_kernel, vocab=vocab, e=4, chunks=3, biases=2, PENALISED=int(penalised)),
        documented(weigh_kernel, vocab=vocab, chunks=3),
        documented(draw_kernel, vocab=vocab, chunks=3, best=1, piece=piece, e=4),
    ]
    assert (traffic.loads, traffic.stores) == tuple(map(sum, zip(*parts, strict=True)))
