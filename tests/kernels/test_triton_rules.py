"""Each rule against its definition in float64; a rule written here, outside `kernels/`; and what rules let the traversal skip."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.attention import rules
from kernels.attention.rules import Rule
from tests.kernels.device import DEVICE, ints
from tests.kernels.paged_scene import SMALL, Scene, expected, make_scene, run
from tests.reference.paged_attention import Score

LENGTHS = [(1, 100), (14, 45), (1, 1), (5, 5), (3, 66)]
HEADS = 4


def assert_follows(
    scene: Scene, rule: Rule, score: Score, start: list[float] | None = None
) -> None:
    want = expected(scene, score, start)
    for share in (None, 2):
        got = run(scene, rule, force_share=share)
        assert got.isfinite().all()
        assert np.abs(got.double().numpy() - want).max() < 1e-5


def scene_of(lengths: list[tuple[int, int]], **shape) -> Scene:
    return make_scene(lengths, kv_heads=2, group=2, **shape)


def hide_unless(seen: np.ndarray, s: np.ndarray) -> np.ndarray:
    return np.where(seen, s, -np.inf)


def test_everything_sees_later_keys_too():
    assert_follows(scene_of(LENGTHS), rules.everything(), lambda s, q, k, head, seq: s)


@pytest.mark.parametrize("window", [1, 32, 33, 1000])
def test_a_sliding_window_sees_the_last_keys(window):
    def score(s, q, k, head, seq):
        return hide_unless((k <= q) & (k > q - window), s)

    assert_follows(scene_of(LENGTHS), rules.sliding_window(window), score)


def test_alibi_takes_a_slope_a_head_off_each_step_of_distance():
    slopes = [2.0**-i for i in range(1, HEADS + 1)]

    def score(s, q, k, head, seq):
        return hide_unless(k <= q, s - slopes[head] * (q - k))

    rule = rules.alibi(torch.tensor(slopes, device=DEVICE))
    assert_follows(scene_of(LENGTHS), rule, score)


@pytest.mark.parametrize("magnitude", [1.0, 40.0])
def test_soft_cap_squeezes_scores_by_a_tangent(magnitude):
    def score(s, q, k, head, seq):
        return hide_unless(k <= q, 5.0 * np.tanh(s / 5.0))

    scene = scene_of(LENGTHS, magnitude=magnitude)
    scene = scene._replace(v=scene.v / magnitude)
    assert_follows(scene, rules.soft_cap(5.0), score)


@pytest.mark.parametrize(("window", "num_sinks"), [(20, 4), (33, 40)])
def test_sinks_stay_in_sight_of_a_window(window, num_sinks):
    def score(s, q, k, head, seq):
        return hide_unless((k <= q) & ((k > q - window) | (k < num_sinks)), s)

    assert_follows(scene_of(LENGTHS), rules.sinks(window, num_sinks), score)


def test_a_learned_sink_takes_part_of_the_probability_once():
    logits = [-2.0, 0.0, 8.0, float("-inf")]

    def score(s, q, k, head, seq):
        return hide_unless(k <= q, s)

    rule = rules.sink_logits(torch.tensor(logits, device=DEVICE))
    assert_follows(scene_of(LENGTHS), rule, score, logits)


def test_a_prefix_is_seen_by_all_its_queries():
    prefix = [10, 40, 0, 5, 70]

    def score(s, q, k, head, seq):
        return hide_unless((k <= q) | (k < prefix[seq]), s)

    assert_follows(scene_of(LENGTHS), rules.prefix_lm(ints(prefix)), score)


# A rule of a user: queries see their own document's keys only, documents being runs of `args[0]` positions, and the nearer half
# of a document twice as likely. It is all that the traversal needs to know.


@triton.jit
def document_span(first, last, kv_len, seq, args):
    return 0, first // args[0] * args[0], last + 1


@triton.jit
def document_score(s, q_pos, k_pos, head, seq, args):
    near = q_pos - k_pos < args[0] // 2
    own = (k_pos <= q_pos) & (k_pos // args[0] == q_pos // args[0])
    return tl.where(own, tl.where(near, s + args[1], s), float("-inf"))


def documents(length: int) -> Rule:
    return Rule(document_span, document_score, rules.no_start, (length, float(np.log(2.0))))


def test_a_rule_written_outside_the_kernels_works():
    def score(s, q, k, head, seq):
        own = (k <= q) & (k // 24 == q // 24)
        return hide_unless(own, s + np.where(q - k < 12, np.log(2.0), 0.0))

    assert_follows(scene_of(LENGTHS), documents(24), score)


# Two rules in one, as Gemma 2 has them: the score of one through the other, and the tighter span.


@triton.jit
def capped_window_score(s, q_pos, k_pos, head, seq, args):
    capped = rules.soft_cap_score(s, q_pos, k_pos, head, seq, (args[1],))
    return rules.window_score(capped, q_pos, k_pos, head, seq, args)


def test_rules_compose_by_calling_each_other():
    def score(s, q, k, head, seq):
        return hide_unless((k <= q) & (k > q - 17), 3.0 * np.tanh(s / 3.0))

    rule = Rule(rules.window_span, capped_window_score, rules.no_start, (17, 3.0))
    assert_follows(scene_of(LENGTHS), rule, score)


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        (rules.sliding_window(20), [(180, 200)]),
        (rules.sinks(20, 4), [(0, 4), (180, 200)]),
        (documents(64), [(192, 200)]),
    ],
)
def test_hidden_blocks_need_not_even_exist(rule, seen):
    scene = make_scene([(1, 200)], block_size=8)
    row = scene.batch.rows[0]
    visible = np.zeros(200, bool)
    for low, high in seen:
        visible[low:high] = True
    want = run(scene, rule)
    blocks = scene.table[row].clone()
    for block in range(25):
        if not visible[8 * block : 8 * block + 8].any():
            scene.k[blocks[block]] = scene.v[blocks[block]] = float("nan")
            scene.table[row, block] = -1
    got = run(scene, rule, small=SMALL)
    assert torch.equal(got, want)
