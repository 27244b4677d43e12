"""GGUF files of every supported kind, and files that are not what they should be."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.core.errors import WeightsError
from engine.weights.load import LoadedModel, load_model
from tests.engine.tiny import Tiny, write_tiny
from tests.reference.llama_reference import reference_logits

QUANTS = [
    *(Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0),
    *(Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K),
]
IDS = [3, 50, 7, 7, 95, 20, 11, 64]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILBURN_CACHE", str(tmp_path / "cache"))


def raw_layout(path: Path, layers: int) -> dict[str, torch.Tensor]:
    """The engine's names over the file's own rows, dequantised by the library and not reordered."""
    values = {
        t.name: torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type)))
        for t in gguf.GGUFReader(path).tensors
    }
    w = {"embed": values["token_embd.weight"], "norm": values["output_norm.weight"]}
    for i in range(layers):
        own = f"blk.{i}."
        for to, of in (
            ("attn_norm", ("attn_norm",)),
            ("qkv", ("attn_q", "attn_k", "attn_v")),
            ("o", ("attn_output",)),
            ("ffn_norm", ("ffn_norm",)),
            ("gate_up", ("ffn_gate", "ffn_up")),
            ("down", ("ffn_down",)),
        ):
            w[f"layers.{i}.{to}"] = torch.cat([values[f"{own}{part}.weight"] for part in of])
            if f"{own}{of[0]}.bias" in values:
                w[f"layers.{i}.{to}_bias"] = torch.cat([values[f"{own}{p}.bias"] for p in of])
    return w


@pytest.mark.parametrize("kind", QUANTS, ids=lambda kind: kind.name)
def test_every_quantised_type_loads_as_the_library_dequantises_it(
    kind: Kind, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(kind=kind))
    raw = raw_layout(path, layers=2)

    model = load_model(path, "float32")
    half = load_model(path, "bfloat16")

    for name in ("embed", "layers.0.o", "layers.1.gate_up", "layers.1.down", "norm"):
        assert torch.equal(model.tensors[name], raw[name]), name
        assert torch.equal(half.tensors[name], raw[name].to(half.tensors[name].dtype)), name
    assert model.ignored == ()


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_rotary_rows_are_brought_to_half_split_order(
    architecture: str, biases: bool, tmp_path: Path
) -> None:
    tiny = Tiny(architecture=architecture, biases=biases, head_size=32)
    path = write_tiny(tmp_path / "tiny.gguf", tiny)
    model = load_model(path, "float32")
    raw = raw_layout(path, layers=2)

    theirs = reference_logits(model.shape, raw, IDS, interleaved=architecture == "llama")

    ours = reference_logits(model.shape, model.tensors, IDS)
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q8_0], ids=lambda kind: kind.name)
def test_raw_blocks_are_kept_in_the_same_row_order_as_the_values(
    kind: Kind, tmp_path: Path
) -> None:
    model = load_model(write_tiny(tmp_path / "tiny.gguf", Tiny(kind=kind)), "float32")

    for name in ("embed", "layers.0.qkv", "layers.0.o", "layers.1.gate_up", "layers.1.down"):
        again = gguf.dequantize(model.blocks[f"{name}:{kind.name}"].numpy(), kind)
        assert np.array_equal(again, model.tensors[name].numpy()), name


def test_sizes_and_tokenizer_are_read_from_the_file(tmp_path: Path) -> None:
    tiny = Tiny(heads=6, kv_heads=3, head_size=16, hidden=64, ffn=96, context=128, tied=False)

    model = load_model(write_tiny(tmp_path / "tiny.gguf", tiny), "float32")

    shape = model.shape
    assert (shape.num_heads, shape.num_kv_heads, shape.head_size) == (6, 3, 16)
    assert (shape.hidden_size, shape.ffn_size, shape.max_context) == (64, 96, 128)
    assert (shape.vocab_size, shape.num_layers, shape.tied) == (96, 2, False)
    assert model.tokenizer.tokens[:2] == ["t0", "t1"]
    assert model.tokenizer.types[:4] == [3, 3, 3, 1]
    assert model.tokenizer.merges == ["t 1", "t 2"]
    assert model.tokenizer.stop_ids == (2,)
    assert (model.tokenizer.pre_tokenizer, model.tokenizer.add_bos) == ("smollm", False)
    assert model.tokenizer.chat_template == "{{ messages }}"


def test_rotary_factors_and_linear_scaling_are_read(tmp_path: Path) -> None:
    tiny = Tiny(
        rope_factors=True, fields=(("rope.scaling.type", "linear"), ("rope.scaling.factor", 4.0))
    )

    model: LoadedModel = load_model(write_tiny(tmp_path / "tiny.gguf", tiny), "float32")

    assert model.shape.rope_scale == 4.0
    assert torch.allclose(model.tensors["rope_factors"], torch.linspace(1, 8, 32))


# FR-15: a checkpoint with tied embeddings that also stores the output head


def test_tied_model_with_a_redundant_head_equals_the_one_without(tmp_path: Path) -> None:
    without = load_model(write_tiny(tmp_path / "a.gguf", Tiny()), "float32")
    with_head = load_model(write_tiny(tmp_path / "b.gguf", Tiny(repeat_head=True)), "float32")

    assert with_head.shape.tied
    assert with_head.ignored == ("output.weight",)
    assert without.ignored == ()
    assert torch.equal(
        reference_logits(without.shape, without.tensors, IDS),
        reference_logits(with_head.shape, with_head.tensors, IDS),
    )


@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"],
)
def test_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(without=(name,)))

    with pytest.raises(WeightsError, match=f"tiny.gguf: the tensor {name} is missing"):
        load_model(path, "float32")


def test_one_missing_bias_of_three_is_named(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "t.gguf", Tiny(biases=True, without=("blk.1.attn_v.bias",)))

    with pytest.raises(WeightsError, match=r"the tensor blk\.1\.attn_v\.bias is missing"):
        load_model(path, "float32")


def test_tensor_outside_the_layers_that_is_not_used_is_listed(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(extra=("something.weight",)))

    assert load_model(path, "float32").ignored == ("something.weight",)


def test_tensor_within_a_layer_that_is_not_used_is_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(extra=("blk.0.attn_q_norm.weight",)))

    with pytest.raises(WeightsError, match=r"attn_q_norm\.weight is unknown to the llama family"):
        load_model(path, "float32")


def test_tensor_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path / "t.gguf", Tiny(without=("output_norm.weight",), extra=("output_norm.weight",))
    )

    with pytest.raises(
        WeightsError, match=r"output_norm.weight has size \[8\]; it should be \[256\]"
    ):
        load_model(path, "float32")


@pytest.mark.parametrize(
    ("tiny", "message"),
    [
        (Tiny(architecture="mamba"), "architecture 'mamba' is not supported; supported are llama"),
        (Tiny(kind=Kind.TQ1_0), "has type TQ1_0, which is not supported; supported are F32, F16"),
        (
            Tiny(fields=(("rope.scaling.type", "yarn"),)),
            "rope.scaling.type 'yarn' is not supported",
        ),
        (Tiny(fields=(("expert_count", 8),)), "mixtures of experts are not supported"),
    ],
    ids=["architecture", "type", "scaling", "experts"],
)
def test_unsupported_file_says_what_is_supported(tiny: Tiny, message: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", tiny)

    with pytest.raises(WeightsError, match=message):
        load_model(path, "float32")
    assert not list(tmp_path.glob("cache/**/*.safetensors"))


def test_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "story.gguf"
    path.write_text("Once upon a time there was a file." * 100)

    with pytest.raises(WeightsError, match=r"story\.gguf: is not a whole GGUF file"):
        load_model(path, "float32")


def test_empty_missing_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()

    with pytest.raises(WeightsError, match=r"empty\.gguf: is not a whole GGUF file"):
        load_model(tmp_path / "empty.gguf", "float32")
    with pytest.raises(WeightsError, match=r"cannot be read: Not a directory"):
        load_model(tmp_path / "empty.gguf" / "inner", "float32")


def test_a_name_that_is_no_file_is_told_what_a_model_is_and_what_the_default_is(
    tmp_path: Path,
) -> None:
    with pytest.raises(WeightsError) as found:
        load_model(tmp_path / "Llama-3.1-8B", "float32")
    said = str(found.value)
    assert "Llama-3.1-8B: there is no such file; a model is given as a GGUF file" in said
    assert "the default is SmolLM2-135M-Instruct" in said
    assert "without --model" in said


def test_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = write_tiny(tmp_path / "whole.gguf", Tiny(hidden=64, ffn=64, head_size=16)).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 4000, 37), *range(4000, len(whole), 20011), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match=r"cut\.gguf: is not a whole GGUF file"):
            load_model(cut, "float32")


def test_damaged_header_never_fails_in_another_way(tmp_path: Path) -> None:
    whole = write_tiny(tmp_path / "whole.gguf", Tiny(hidden=64, ffn=64, head_size=16)).read_bytes()
    rng = np.random.default_rng(5)
    bad = tmp_path / "bad.gguf"
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, 5000, 4):
            damaged[place] = rng.integers(0, 256)
        bad.write_bytes(damaged)
        try:
            load_model(bad, "float32")
        except WeightsError:
            refused += 1
    assert refused > 20


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny())
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.attn_v.weight")
    damaged = bytearray(path.read_bytes())
    damaged[tensor.data_offset : tensor.data_offset + 4] = np.float32(np.inf).tobytes()
    path.write_bytes(damaged)

    with pytest.raises(
        WeightsError, match=r"blk\.1\.attn_v\.weight holds values that are not finite"
    ):
        load_model(path, "float32")
