"""The default model in the engine against the plain float32 forward pass, and that against transformers."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.models.attention import TorchAttention
from engine.models.build import build_decoder
from engine.models.decoder import Decoder
from engine.models.llama import Llama
from engine.models.rotary import Rotary
from engine.runner import TorchRunner, build_runner
from engine.weights.load import LoadedModel, load_model
from tests.engine.drive import drive
from tests.engine.models.steps import prefill_step
from tests.reference.llama_reference import reference_logits

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]  # minutes where others load the machine

LENGTHS = (17, 700, 1, 129, 33, 2, 255, 64, 511, 3, 100, 16, 300, 5, 127, 31, 400, 8, 200, 15)
ALONE = (17, 700, 1, 129, 255, 511, 16, 127)
"""Those that also run by themselves, where each step reads all weights for one token."""
NEW_TOKENS = 48
TIE = 1e-4

BF16_BOUNDS = (2.0, 0.25, 5e-3)
"""Teacher-forced: largest and mean difference of logits, which spread over about 5, and mean divergence in nats. bfloat16
keeps 8 bits of each of 30 layers' sums. Seen: 0.75, 0.11 and 1.2e-3."""
FAST_BOUNDS = (3.5, 0.4, 1e-2)
"""The same where activations are rounded to 8 bits as well, in groups of 32. Seen: 1.15, 0.20 and 2.5e-3."""


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    """One thread computes: two that wait for each other are slow where something else runs beside the tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(None, "float32")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def runner(model: LoadedModel) -> TorchRunner:
    return build_runner(model, num_blocks=300, max_context=1024, threads=1)


@pytest.fixture(scope="module")
def prompts(model: LoadedModel) -> dict[int, NDArray[np.int32]]:
    """By their lengths."""
    rng = np.random.default_rng(7)
    return {n: rng.integers(3, model.shape.vocab_size, n).astype(np.int32) for n in LENGTHS}


@pytest.fixture(scope="module")
def alone(runner: TorchRunner, prompts: dict[int, NDArray[np.int32]]) -> dict[int, list[int]]:
    return {n: drive(runner, [prompts[n]], NEW_TOKENS)[0][0] for n in ALONE}


def exact_logits(model: LoadedModel, prompt: NDArray[np.int32], output: list[int]) -> torch.Tensor:
    """The reference's logits from which each token of `output` is to be taken."""
    history = [*prompt.tolist(), *output[:-1]]
    return reference_logits(model.shape, model.tensors, history, slice(len(prompt) - 1, None))


@pytest.fixture(scope="module")
def exact(
    model: LoadedModel, prompts: dict[int, NDArray[np.int32]], alone: dict[int, list[int]]
) -> dict[int, torch.Tensor]:
    """After each of `alone`."""
    with torch.inference_mode():
        return {n: exact_logits(model, prompts[n], said) for n, said in alone.items()}


def assert_greedy(prompt: NDArray[np.int32], output: list[int], logits: torch.Tensor) -> None:
    """Each token is the reference's best after the same history, up to and including its first near-tie."""
    assert len(output) == NEW_TOKENS
    best, second = logits.topk(2).values.T
    tied = torch.nonzero(best - second < TIE)
    sure = int(tied[0]) if len(tied) else NEW_TOKENS
    assert sure > 8 or len(prompt) < 4
    assert output[:sure] == logits.argmax(-1)[:sure].tolist()
    if sure < NEW_TOKENS:
        assert best[sure] - logits[sure, output[sure]] < TIE


@torch.inference_mode()
def test_greedy_tokens_alone_are_the_references(
    prompts: dict[int, NDArray[np.int32]],
    alone: dict[int, list[int]],
    exact: dict[int, torch.Tensor],
) -> None:
    for n, said in alone.items():
        assert_greedy(prompts[n], said, exact[n])


@torch.inference_mode()
def test_greedy_tokens_in_batches_with_preemption_are_the_references(
    model: LoadedModel,
    runner: TorchRunner,
    prompts: dict[int, NDArray[np.int32]],
    alone: dict[int, list[int]],
) -> None:
    batched, scheduler = drive(
        runner, list(prompts.values()), NEW_TOKENS, num_blocks=110, token_budget=160, max_batch=16
    )
    assert scheduler.num_preemptions > 0
    for n, said in zip(prompts, batched, strict=True):
        if said != alone.get(n):
            assert_greedy(prompts[n], said, exact_logits(model, prompts[n], said))


@torch.inference_mode()
def test_reference_agrees_with_transformers(model: LoadedModel) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape, w = model.shape, model.tensors
    oracle = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.ffn_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            max_position_embeddings=shape.max_context,
            rms_norm_eps=shape.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
            tie_word_embeddings=True,
        )
    )
    state = {"model.embed_tokens.weight": w["embed"], "model.norm.weight": w["norm"]}
    kv = shape.num_kv_heads * shape.head_size
    for i in range(shape.num_layers):
        to, of = f"model.layers.{i}.", f"layers.{i}."
        q, k, v = w[of + "qkv"].split([shape.num_heads * shape.head_size, kv, kv])
        gate, up = w[of + "gate_up"].chunk(2)
        state |= {
            to + "self_attn.q_proj.weight": q,
            to + "self_attn.k_proj.weight": k,
            to + "self_attn.v_proj.weight": v,
            to + "self_attn.o_proj.weight": w[of + "o"],
            to + "mlp.gate_proj.weight": gate,
            to + "mlp.up_proj.weight": up,
            to + "mlp.down_proj.weight": w[of + "down"],
            to + "input_layernorm.weight": w[of + "attn_norm"],
            to + "post_attention_layernorm.weight": w[of + "ffn_norm"],
        }
    missing, unexpected = oracle.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    ids = np.random.default_rng(3).integers(3, shape.vocab_size, 300).tolist()

    theirs = oracle(torch.tensor([ids])).logits[0]

    ours = reference_logits(shape, w, ids)
    assert torch.allclose(ours, theirs, atol=2e-3, rtol=0)


def torch_decoder(model: LoadedModel) -> Decoder:
    """The torch decoder, also where the compiled one could serve."""
    rotary = Rotary(model.shape, 1024)
    attention = TorchAttention(model.shape, rotary, 64, 16, torch.bfloat16)
    return Llama(model.shape, model.tensors, attention)


def default_decoder(model: LoadedModel) -> Decoder:
    """What `kilburn serve` runs on this machine."""
    return build_decoder(model, num_blocks=64, block_size=16, max_context=1024)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("build", "bounds"),
    [(torch_decoder, BF16_BOUNDS), (default_decoder, FAST_BOUNDS)],
    ids=["torch", "default"],
)
def test_logits_of_fewer_bits_stay_near_the_references(
    build: Callable[[LoadedModel], Decoder],
    bounds: tuple[float, float, float],
    prompts: dict[int, NDArray[np.int32]],
    alone: dict[int, list[int]],
    exact: dict[int, torch.Tensor],
) -> None:
    decoder = build(load_model(None, "bfloat16"))
    largest, mean, divergence = bounds
    for n in (17, 129, 255, 511, 127):
        history = [*prompts[n].tolist(), *alone[n][:-1]]
        near = decoder.forward(prefill_step(history, range(n - 1, len(history))))
        assert (near - exact[n]).abs().max() < largest
        assert (near - exact[n]).abs().mean() < mean
        said, meant = near.log_softmax(-1), exact[n].log_softmax(-1)
        assert (meant.exp() * (meant - said)).sum(-1).mean() < divergence
    decoder.close()
