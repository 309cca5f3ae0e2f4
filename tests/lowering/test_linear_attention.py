"""What linear attention by our kernels is measured against."""

from __future__ import annotations

import torch

from vtc.kernels.linear_attention import written_out
from vtc.lowering.linear_attention import _compiled


def test_the_written_out_form_compiles_outside_of_any_trace() -> None:
    base = torch.randn(2, 64, 3, 48).transpose(1, 2)
    operands = list(base.split([16, 16, 16], -1))
    (found,) = _compiled(operands, 1e-5)(*operands)
    expected = written_out(*(o.double() for o in operands), 1e-5)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)
