"""Turns a checkpoint into the one layout the engine runs on, written as a safetensors file. Knows no caches and no model code.

The layout: `embed`, `head` (untied only), `norm`, `rope_factors` (if any), and for layer i `layers.i.` + `attn_norm`,
`qkv` (rows of Q, K, V in this order), `o`, `ffn_norm`, `gate_up` (rows of gate, then up), `down`, and `qkv_bias`, `o_bias`
where the file has them. Q and K rows are in half-split rotary order. Matrices are in the chosen dtype, vectors in float32.
A matrix whose parts are all Q4_1 or all Q8_0 is there a second time as raw blocks, `NAME:KIND`. `meta` holds everything else.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.errors import WeightsError
from engine.models.dtype import DtypeName
from engine.models.shape import ModelShape
from engine.weights.source import Source
from engine.weights.tokenizer_data import TokenizerData

T = TypeVar("T", bound=np.generic)

_HARMLESS = (".attn_rot_embd", ".rotary_emb.inv_freq")
"""Per-layer tensors that repeat what the sizes say."""


class Meta(Struct, frozen=True):
    """What a converted file says beside its tensors."""

    title: str
    shape: ModelShape
    tokenizer: TokenizerData
    ignored: tuple[str, ...]
    """Tensors of the checkpoint that the engine does not use, by their own names."""


class _Entry(Struct, frozen=True):
    """One tensor to write: its safetensors dtype and shape are known before its bytes are made."""

    name: str
    dtype: Literal["F32", "BF16", "U8"]
    shape: tuple[int, ...]
    make: Callable[[], NDArray[np.generic]]


def convert(
    source: Source,
    dtype: DtypeName,
    target: Path,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Writes `source` in the engine's layout to `target`, tensor by tensor, so that memory holds one at a time.

    `report` is told the bytes written and the bytes in all, after each tensor. On failure what was written so far stays at `target`: the caller owns that file.

    Raises:
        WeightsError: a tensor is missing, has the wrong size, or is unknown to this family.
        OSError: `target` cannot be written, for one because the disk is full.
    """
    layout = _Layout(source, dtype)
    entries = list(layout.entries())
    meta = Meta(source.title, source.shape, source.tokenizer, layout.ignored())
    encoded = np.frombuffer(msgspec.msgpack.encode(meta), dtype=np.uint8)
    entries.append(_Entry("meta", "U8", encoded.shape, lambda: encoded))
    _write(entries, target, report)


class _Layout:
    """Walks the engine's layout over a source, and keeps account of which tensors it has used."""

    def __init__(self, source: Source, dtype: DtypeName) -> None:
        self._source = source
        self._shape = source.shape
        self._dtype: Literal["F32", "BF16"] = "F32" if dtype == "float32" else "BF16"
        self._used: set[str] = set()

    def entries(self) -> Iterator[_Entry]:
        """Every tensor of the layout, checked for presence and size."""
        s = self._shape
        width, kv_width = s.num_heads * s.head_size, s.num_kv_heads * s.head_size
        yield from self._matrix("embed", s.hidden_size, [("token_embd", s.vocab_size, 0)])
        if not s.tied:
            yield from self._matrix("head", s.hidden_size, [("output", s.vocab_size, 0)])
        yield self._vector("norm", [("output_norm.weight", s.hidden_size, 0)])
        if "rope_freqs.weight" in self._source.names:
            yield self._vector("rope_factors", [("rope_freqs.weight", s.head_size // 2, 0)])
        for i in range(s.num_layers):
            to, of = f"layers.{i}.", f"blk.{i}."
            qkv = [
                (of + "attn_q", width, s.num_heads),
                (of + "attn_k", kv_width, s.num_kv_heads),
                (of + "attn_v", kv_width, 0),
            ]
            o = [(of + "attn_output", s.hidden_size, 0)]
            gate_up = [(of + "ffn_gate", s.ffn_size, 0), (of + "ffn_up", s.ffn_size, 0)]
            yield self._vector(to + "attn_norm", [(of + "attn_norm.weight", s.hidden_size, 0)])
            yield from self._matrix(to + "qkv", s.hidden_size, qkv)
            yield from self._bias(to + "qkv_bias", qkv)
            yield from self._matrix(to + "o", width, o)
            yield from self._bias(to + "o_bias", o)
            yield self._vector(to + "ffn_norm", [(of + "ffn_norm.weight", s.hidden_size, 0)])
            yield from self._matrix(to + "gate_up", s.hidden_size, gate_up)
            yield from self._matrix(to + "down", s.ffn_size, [(of + "ffn_down", s.hidden_size, 0)])

    def ignored(self) -> tuple[str, ...]:
        """Tensors that `entries` did not use, sorted; to be called after it.

        Raises:
            WeightsError: one of them belongs to a layer, so that leaving it out would change what the model says.
        """
        unused = sorted(self._source.names - self._used)
        for name in unused:
            if name.startswith("blk.") and not any(part in name for part in _HARMLESS):
                raise WeightsError(
                    f"the tensor {self._source.called(name)} is unknown to the {self._shape.architecture} family, and leaving it out "
                    "would change the model's answers"
                )
        return tuple(self._source.called(name) for name in unused)

    def _matrix(
        self, name: str, columns: int, parts: list[tuple[str, int, int]]
    ) -> Iterator[_Entry]:
        """Stacked rows of (tensor, rows, heads to reorder) as values, and as raw blocks where all parts allow it."""
        named = [(part + ".weight", rows, heads) for part, rows, heads in parts]
        for part, rows, _ in named:
            self._use(part, (rows, columns))
        total = sum(rows for _, rows, _ in named)
        yield _Entry(name, self._dtype, (total, columns), lambda: self._values(named, self._dtype))
        blocks = [self._source.blocks(part) for part, _, _ in named]
        kinds = {block.kind if block else None for block in blocks}
        if len(kinds) == 1 and blocks[0] is not None:
            row_bytes = blocks[0].data.shape[1]
            yield _Entry(
                f"{name}:{blocks[0].kind}", "U8", (total, row_bytes), lambda: self._raw(named)
            )

    def _vector(self, name: str, parts: list[tuple[str, int, int]]) -> _Entry:
        """Joined elements of (tensor, elements, heads to reorder), in float32."""
        for part, elements, _ in parts:
            self._use(part, (elements,))
        total = sum(elements for _, elements, _ in parts)
        return _Entry(name, "F32", (total,), lambda: self._values(parts, "F32"))

    def _bias(self, name: str, parts: list[tuple[str, int, int]]) -> Iterator[_Entry]:
        """The vector of all parts' biases, if the file has any."""
        biases = [(part + ".bias", rows, heads) for part, rows, heads in parts]
        if any(bias in self._source.names for bias, _, _ in biases):
            yield self._vector(name, biases)

    def _use(self, name: str, size: tuple[int, ...]) -> None:
        if name not in self._source.names:
            raise WeightsError(f"the tensor {self._source.called(name)} is missing")
        if (found := self._source.size(name)) != size:
            raise WeightsError(
                f"the tensor {self._source.called(name)} has size {list(found)}; it should be {list(size)}"
            )
        self._used.add(name)

    def _values(
        self, parts: list[tuple[str, int, int]], dtype: Literal["F32", "BF16"]
    ) -> NDArray[np.generic]:
        joined = np.concatenate([self._ordered(self._read(p), heads) for p, _, heads in parts])
        if dtype == "F32":
            return joined
        return torch.from_numpy(joined).to(torch.bfloat16).view(torch.int16).numpy()

    def _read(self, name: str) -> NDArray[np.float32]:
        values = self._source.read(name)
        if not np.isfinite(values).all():
            raise WeightsError(
                f"the tensor {self._source.called(name)} holds values that are not finite; download the file again"
            )
        return values

    def _raw(self, parts: list[tuple[str, int, int]]) -> NDArray[np.uint8]:
        rows = []
        for part, _, heads in parts:
            blocks = self._source.blocks(part)
            assert blocks is not None
            rows.append(self._ordered(blocks.data, heads))
        return np.concatenate(rows)

    def _ordered(self, rows: NDArray[T], heads: int) -> NDArray[T]:
        """Rows of `heads` heads brought from interleaved to half-split rotary order; as they are where `heads` is 0."""
        if not heads or not self._source.interleaved_rotary:
            return rows
        tail = rows.shape[1:]
        half = rows.shape[0] // heads // 2
        return rows.reshape(heads, half, 2, *tail).swapaxes(1, 2).reshape(-1, *tail)


def _write(entries: list[_Entry], target: Path, report: Callable[[int, int], None]) -> None:
    """Writes a safetensors file: 8 bytes of header length, a JSON header padded to 64 bytes, then the tensors in order."""
    header: dict[str, object] = {}
    offset = 0
    sizes = {"F32": 4, "BF16": 2, "U8": 1}
    for entry in entries:
        end = offset + sizes[entry.dtype] * int(np.prod(entry.shape))
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(len(encoded) + 8) % 64)
    with target.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for entry in entries:
            data = entry.make()
            assert data.shape == entry.shape
            file.write(np.ascontiguousarray(data).data.cast("B"))
            report(file.tell() - 8 - len(encoded), offset)
