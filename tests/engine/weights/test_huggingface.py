"""Checkpoint folders written by transformers itself, whose model is the oracle."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from engine.core.errors import WeightsError
from engine.weights.load import load_model
from tests.reference.llama_reference import reference_logits

IDS = list(range(3, 60))
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": [2, 7],
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILBURN_CACHE", str(tmp_path / "cache"))


def write_folder(folder: Path, model: PreTrainedModel, **save: Any) -> Path:
    """Saves a model with a byte-level tokenizer of 90 tokens, of which the last is special."""
    model.save_pretrained(folder, **save)
    tokenizer = Tokenizer(models.BPE({f"t{i}": i for i in range(90)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def llama(**settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(SIZES | settings)))


def edit(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


MODELS = {
    "llama": llama,
    "tied": lambda: llama(tie_word_embeddings=True),
    "biases": lambda: llama(attention_bias=True),
    "head size": lambda: llama(head_dim=24),
    "linear": lambda: llama(
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}
    ),
    "llama3": lambda: llama(rope_parameters=LLAMA3),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}


@torch.inference_mode()
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_logits_equal_those_of_transformers(make: Any, tmp_path: Path) -> None:
    oracle = make().eval()
    folder = write_folder(tmp_path / "model", oracle)

    model = load_model(folder, "float32")

    ours = reference_logits(model.shape, model.tensors, IDS)
    theirs = oracle(torch.tensor([IDS])).logits[0]
    assert torch.allclose(ours, theirs, atol=2e-4)
    assert model.ignored == ()


def test_shards_and_half_precision_are_read(tmp_path: Path) -> None:
    oracle = llama().to(torch.bfloat16)
    folder = write_folder(tmp_path / "Some-3.2-model", oracle, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1

    model = load_model(folder, "float32")

    assert model.name == "Some-3.2-model"
    assert torch.equal(
        model.tensors["layers.1.down"], oracle.model.layers[1].mlp.down_proj.weight.float()
    )


def test_tokenizer_data_is_read(tmp_path: Path) -> None:
    data = load_model(write_folder(tmp_path / "m", llama()), "float32").tokenizer

    assert (data.model, data.pre_tokenizer, data.add_bos) == ("gpt2", "smollm", False)
    assert data.tokens[89:92] == ["t89", "<|end|>", "<unused 91>"]
    assert data.types[89:92] == [1, 3, 3]
    assert data.stop_ids == (2, 7)
    assert data.chat_template == "{{ messages }}"


# FR-15: a checkpoint with tied embeddings that also stores the output head


@torch.inference_mode()
def test_tied_checkpoint_with_a_redundant_head_equals_the_one_without(tmp_path: Path) -> None:
    without = write_folder(tmp_path / "a", llama(tie_word_embeddings=True))
    with_head = write_folder(tmp_path / "b", llama(tie_word_embeddings=True))
    file = with_head / "model.safetensors"
    tensors = load_file(file)
    assert "lm_head.weight" not in tensors
    save_file(tensors | {"lm_head.weight": torch.full((96, 64), 9.0)}, file)

    one, two = load_model(without, "float32"), load_model(with_head, "float32")

    assert one.ignored == ()
    assert two.ignored == ("lm_head.weight",)
    logits = [reference_logits(m.shape, m.tensors, IDS) for m in (one, two)]
    assert torch.equal(*logits)


def test_untied_checkpoint_without_a_head_names_the_missing_tensor(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", llama(tie_word_embeddings=True))
    edit(folder, {"tie_word_embeddings": False})

    with pytest.raises(WeightsError, match=r"m: the tensor lm_head\.weight is missing"):
        load_model(folder, "float32")


def test_missing_layer_tensor_has_the_files_own_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", llama())
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, folder / "model.safetensors")

    with pytest.raises(
        WeightsError, match=r"model\.layers\.1\.self_attn\.k_proj\.weight is missing"
    ):
        load_model(folder, "float32")


@pytest.mark.parametrize("name", ["q_norm.weight", "rotary_emb.inv_freq"])
def test_unknown_layer_tensor_is_refused_unless_it_is_known_to_be_harmless(
    name: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", llama())
    tensors = load_file(folder / "model.safetensors")
    full = f"model.layers.0.self_attn.{name}"
    save_file(tensors | {full: torch.zeros(8)}, folder / "model.safetensors")

    if name == "rotary_emb.inv_freq":
        assert load_model(folder, "float32").ignored == (full,)
    else:
        with pytest.raises(WeightsError, match=r"the tensor model.*q_norm\.weight is unknown"):
            load_model(folder, "float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported are llama"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported is silu"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn' is not supported"),
        ({"num_attention_heads": None}, "config.json or tokenizer.json is not as expected"),
    ],
    ids=["family", "activation", "scaling", "type"],
)
def test_unsupported_folder_says_what_is_supported(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", llama())
    edit(folder, change)

    with pytest.raises(WeightsError, match=message):
        load_model(folder, "float32")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_and_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", llama())
    (folder / name).write_bytes((folder / name).read_bytes()[:-50])
    with pytest.raises(WeightsError, match=name):
        load_model(folder, "float32")

    (folder / name).unlink()

    wanted = "no safetensors file" if name.endswith("tensors") else f"holds no {name}"
    with pytest.raises(WeightsError, match=wanted):
        load_model(folder, "float32")


def test_single_safetensors_file_points_to_its_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", llama())

    with pytest.raises(WeightsError, match="name the folder that holds it"):
        load_model(folder / "model.safetensors", "float32")
