"""Matrix products with weights prepared once. Knows what this CPU multiplies fast; knows no model.

Source of the packed form: oneDNN's blocked weight layouts, as reached by torch's own compiler through `mkldnn` operators.
"""

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as fn

from engine.models.dtype import bfloat16_is_fast, onednn_is_there

_PACK_FOR_ROWS: Final = 256
"""The batch that weights are packed for. Packed for 256, every batch from 1 up ran as fast as packed for itself;
packed for 32 or fewer, other batches were repacked at each call, ten times slower."""

_packed: Final[Callable[..., torch.Tensor]] = torch.ops.mkldnn._linear_pointwise.default
_packed_with: Final[Callable[..., torch.Tensor]] = torch.ops.mkldnn._linear_pointwise.binary


class Linear:
    """`x @ weight.T + bias`. Packed for oneDNN where that can be, which takes half the time at 1 to 8 rows; else plain."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: [out, in] float32 or bfloat16; `bias`: [out] float32."""
        fast = bfloat16_is_fast() if weight.dtype == torch.bfloat16 else onednn_is_there()
        self._packed = fast and weight.device.type == "cpu"
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS)
            if self._packed
            else weight
        )
        self._bias = None if bias is None else bias.to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] to [n, out]."""
        if self._packed:
            return _packed(x, self._weight, self._bias, "none", [], "")
        return fn.linear(x, self._weight, self._bias)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """Silu of the product."""
        if self._packed:
            return _packed(x, self._weight, self._bias, "swish", [], "")
        return fn.silu(fn.linear(x, self._weight, self._bias))

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The product times `other` [n, out], element by element."""
        if self._packed:
            return _packed_with(x, other, self._weight, self._bias, "mul")
        return fn.linear(x, self._weight, self._bias).mul_(other)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The product plus `other` [n, out]."""
        if self._packed:
            return _packed_with(x, other, self._weight, self._bias, "add")
        return fn.linear(x, self._weight, self._bias).add_(other)


class Head:
    """`x @ weight.T` in float32. Logits rounded to bfloat16's 8 bits would tie: greedy draws would take the lowest id of near-equals, and
    seeded ones would keep whole ties.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: [vocabulary, in] float32 or bfloat16. A CPU keeps it in float32, which took it no more time at 1 to 32 rows."""
        on_cpu = weight.device.type == "cpu"
        self._weight = weight
        self._wide = Linear(weight.float()) if on_cpu or weight.dtype == torch.float32 else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] to float32 [n, vocabulary]."""
        if self._wide is not None:
            return self._wide(x.float())
        return torch.mm(x, self._weight.T, out_dtype=torch.float32)
