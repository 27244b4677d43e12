"""Model shapes have the published parameter counts, from the table and from config.json alike."""

import json

import pytest

from engine.core.errors import ConfigError
from sim.models import built_in_models, find_model, load_hf_config

PUBLISHED = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-13B": 13_015_864_320,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Mistral-7B": 7_248_023_552,
    "Mixtral-8x7B": 46_702_792_704,
    "SmolLM2-360M": 361_821_120,
    "SmolLM2-1.7B": 1_711_376_384,
    "Qwen3-32B": 32_762_123_264,
    "OPT-13B": 12_853_473_280,
    "SmolLM2-135M": 134_515_008,
}

LLAMA_3 = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}
OPT = {
    "model_type": "opt",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "word_embed_proj_dim": 5120,
    "num_attention_heads": 40,
    "ffn_dim": 20480,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
}
QWEN_3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
QWEN_3_MOE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    assert find_model(name).num_params == PUBLISHED[name]


def test_every_built_in_shape_is_checked():
    assert set(built_in_models()) == set(PUBLISHED)


def test_kv_bytes_are_two_vectors_a_layer_and_kv_head():
    assert find_model("Llama-3.1-8B").kv_bytes_per_token(2) == 2 * 32 * 8 * 128 * 2
    # Kwon et al., section 3: 800 KB a token for OPT-13B in fp16.
    assert find_model("OPT-13B").kv_bytes_per_token(2) == 800 * 1024


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA_3, "Llama-3.1-8B"),
        (OPT, "OPT-13B"),
        (QWEN_3, "Qwen3-32B"),
        (QWEN_3_MOE, "Qwen3-30B-A3B"),
        (MIXTRAL, "Mixtral-8x7B"),
    ],
)
def test_config_json_gives_the_shape_of_the_table(tmp_path, config, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert find_model(str(folder)) == find_model(str(folder / "config.json")) == find_model(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "mixtral"}, "num_local_experts"),
        (QWEN_3_MOE | {"num_experts_per_tok": None}, "num_experts_per_tok"),
        (QWEN_3_MOE | {"mlp_only_layers": [0]}, "dense and expert"),
        (QWEN_3_MOE | {"decoder_sparse_step": 2}, "dense and expert"),
    ],
)
def test_a_config_that_does_not_fit_names_the_field(tmp_path, change, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_3 | change))
    with pytest.raises(ConfigError, match=words):
        load_hf_config(path)


def test_broken_json_is_said_plainly(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        load_hf_config(path)


def test_an_unknown_model_lists_the_known_and_the_closest():
    with pytest.raises(ConfigError, match=r"did you mean Qwen3-.*Llama-2-7B.*config\.json"):
        find_model("qwen-3-33b")


def test_names_forgive_case_and_punctuation():
    assert find_model("llama 3.1 8b").name == "Llama-3.1-8B"


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("meta-llama/Llama-2-13b-hf", "Llama-2-13B"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("facebook/opt-13b", "OPT-13B"),
    ],
)
def test_the_name_of_a_repository_is_understood(repository, name):
    assert find_model(repository).name == name
