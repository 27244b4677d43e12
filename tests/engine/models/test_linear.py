"""The head product keeps what the sums hold; layers' products round to their format."""

import pytest
import torch

from engine.models.linear import Head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7])
def test_logits_are_not_rounded_to_the_weights_format(rows: int, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(rows)
    weight = torch.randn(300, 96, generator=rng).to(dtype)
    x = torch.randn(rows, 96, generator=rng).to(dtype)

    logits = Head(weight)(x)

    exact = x.double() @ weight.double().T
    bound = 96 * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    assert logits.dtype == torch.float32
    assert ((logits - exact).abs() <= bound).all()
