"""Reads GGUF files of the Llama family: sizes, tokenizer data, tensors. Knows nothing of caches, torch or rotary order.

Opening takes seconds (the format holds one string object a token), so `load.py` opens a file once and keeps a converted copy.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from numpy.typing import NDArray

from engine.core.errors import WeightsError
from engine.models.shape import ModelShape
from engine.weights.source import Blocks
from engine.weights.tokenizer_data import TokenizerData

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERLEAVED_ROTARY = {"llama": True, "qwen2": False}
"""Supported architectures, and whether their files order the rows of Q and K for interleaved pairs."""

_KINDS = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
)
SUPPORTED_TYPES = tuple(gguf.GGMLQuantizationType[kind] for kind in _KINDS)

_KEPT_BLOCKS = ("Q4_1", "Q8_0")
_MOST_ENTRIES = 1 << 22
_BROKEN = (ValueError, KeyError, IndexError, ArithmeticError, TypeError, MemoryError)
"""What the reader raises when it walks over damaged bytes."""


class _BoundedReader(gguf.GGUFReader):
    """The library's reader, made to stop at the end of the file instead of reading empty values on."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError("it ends before its contents do")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if (
            raw_type == gguf.GGUFValueType.ARRAY
            and int(self._get(orig_offs + 4, np.uint64)[0]) > _MOST_ENTRIES
        ):
            raise ValueError("it declares a list of impossible length")
        return super()._get_field_parts(orig_offs, raw_type)


class GgufSource:
    """A GGUF file opened for conversion; implements `engine.weights.source.Source`."""

    def __init__(self, path: Path) -> None:
        """Opens and checks `path`.

        Raises:
            WeightsError: not a GGUF file, damaged, or of an unsupported architecture, rotary scaling or tensor type.
        """
        self._path = path
        with _damage_named(path):
            self._reader = _BoundedReader(path)
            self._arch = str(self._value("general.architecture", ""))
        if self._arch not in INTERLEAVED_ROTARY:
            raise WeightsError(
                f"{path.name}: architecture {self._arch!r} is not supported; "
                f"supported are {', '.join(INTERLEAVED_ROTARY)}"
            )
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        for tensor in self._reader.tensors:
            if tensor.tensor_type not in SUPPORTED_TYPES:
                raise WeightsError(
                    f"{path.name}: tensor {tensor.name} has type {tensor.tensor_type.name}, which is not supported; "
                    f"supported are {', '.join(kind.name for kind in SUPPORTED_TYPES)}"
                )
        self.names = frozenset(self._tensors)
        self.interleaved_rotary = INTERLEAVED_ROTARY[self._arch]
        with _damage_named(path):
            self.tokenizer = self._read_tokenizer()
            self.title = str(self._value("general.name", path.stem))
            self.shape = self._read_shape()

    def called(self, name: str) -> str:
        """The file's own name of a tensor."""
        return name

    def size(self, name: str) -> tuple[int, ...]:
        """[rows, columns] or [elements] of a tensor."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def read(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32, dequantised where needed."""
        tensor = self._tensors[name]
        with np.errstate(invalid="ignore", over="ignore"):
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        return np.ascontiguousarray(values.reshape(self.size(name)), dtype=np.float32)

    def blocks(self, name: str) -> Blocks | None:
        """The tensor's quantised blocks where it is Q4_1 or Q8_0, else None."""
        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        return Blocks(kind, tensor.data) if kind in _KEPT_BLOCKS else None

    def _value(self, key: str, default: Any = None) -> Any:
        """A metadata value, or `default` where the file lacks it."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def _own(self, key: str, default: Any = None) -> Any:
        """A value under the architecture's prefix; without a default it must be there.

        Raises:
            WeightsError: it is missing.
        """
        value = self._value(f"{self._arch}.{key}", default)
        if value is None:
            raise WeightsError(f"{self._path.name}: the field {self._arch}.{key} is missing")
        return value

    def _read_shape(self) -> ModelShape:
        if "token_embd.weight" not in self._tensors:
            raise WeightsError(f"{self._path.name}: the tensor token_embd.weight is missing")
        if int(self._own("expert_count", 0)):
            raise WeightsError(f"{self._path.name}: mixtures of experts are not supported")
        scaling = self._own("rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise WeightsError(
                f"{self._path.name}: rope.scaling.type {scaling!r} is not supported; supported are none and linear"
            )
        heads = int(self._own("attention.head_count"))
        hidden = int(self._own("embedding_length"))
        head_size = int(self._own("attention.key_length", hidden // heads))
        for key in ("attention.value_length", "rope.dimension_count"):
            if (other := int(self._own(key, head_size))) != head_size:
                raise WeightsError(
                    f"{self._path.name}: {key} is {other}, but only the head size, {head_size}, is supported"
                )
        context = int(self._own("context_length"))
        return ModelShape(
            architecture=self._arch,
            vocab_size=self.size("token_embd.weight")[0],
            num_layers=int(self._own("block_count")),
            hidden_size=hidden,
            ffn_size=int(self._own("feed_forward_length")),
            num_heads=heads,
            num_kv_heads=int(self._own("attention.head_count_kv", heads)),
            head_size=head_size,
            max_context=min(context, int(self._own("attention.sliding_window", 0)) or context),
            rope_theta=float(self._own("rope.freq_base", 10000.0)),
            rope_scale=float(self._own("rope.scaling.factor", 1.0)) if scaling == "linear" else 1.0,
            norm_eps=float(self._own("attention.layer_norm_rms_epsilon")),
            tied=self._head_is_embedding(),
        )

    def _head_is_embedding(self) -> bool:
        """Whether the head is left out, which in GGUF means tied, or stored again byte for byte."""
        head, embedding = self._tensors.get("output.weight"), self._tensors["token_embd.weight"]
        return head is None or (
            head.tensor_type == embedding.tensor_type and np.array_equal(head.data, embedding.data)
        )

    def _read_tokenizer(self) -> TokenizerData:
        tokens = self._value("tokenizer.ggml.tokens")
        if not tokens:
            raise ValueError("it has no tokenizer.ggml.tokens")
        model = str(self._value("tokenizer.ggml.model", ""))
        return TokenizerData(
            model=model,
            pre_tokenizer=str(self._value("tokenizer.ggml.pre", "default")),
            tokens=tokens,
            types=self._value("tokenizer.ggml.token_type") or [1] * len(tokens),
            merges=self._value("tokenizer.ggml.merges") or [],
            scores=(self._value("tokenizer.ggml.scores") or []) if model == "llama" else [],
            bos_id=self._value("tokenizer.ggml.bos_token_id"),
            eos_id=self._value("tokenizer.ggml.eos_token_id"),
            eot_id=self._value("tokenizer.ggml.eot_token_id"),
            unknown_id=self._value("tokenizer.ggml.unknown_token_id"),
            add_bos=bool(self._value("tokenizer.ggml.add_bos_token", model == "llama")),
            add_space_prefix=bool(self._value("tokenizer.ggml.add_space_prefix", model == "llama")),
            chat_template=self._value("tokenizer.chat_template"),
        )


@contextmanager
def _damage_named(path: Path) -> "Iterator[None]":
    """Turns what the reader raises on damaged bytes into one sentence."""
    try:
        yield
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _BROKEN as error:
        raise WeightsError(
            f"{path.name}: is not a whole GGUF file ({error}); download it again"
        ) from error
