"""Patterns whose shapes or numbers change from call to call: one program serves them all."""

from __future__ import annotations

import pytest
import torch

from lowering.dvm.evaluated import Compiled, assert_close, counted
from patterns.dynamic_patterns import DYNAMIC

# Where sizes 0 and 1 differ from others in Dynamo's guards, or duck shaping finds equal sizes.
TWICE = {"rms_norm_of_any_batch_144068", "decode_context_grows"}
EAGER = {
    "boolean_mask_114220": {"aten.index.Tensor"},
    "masked_select_165421": {"aten.masked_select.default"},
    "nonzero_write_back_194166": {"aten.nonzero.default"},
    "experts_with_uneven_tokens": {"aten.nonzero.default"},
}


@pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
@pytest.mark.parametrize("name", DYNAMIC)
def test_a_pattern_is_captured_once_and_compiles_no_machine_code(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    fn, calls = DYNAMIC[name]()
    compiled = Compiled(fn)
    with counted() as counters:
        for args in calls:
            assert_close(compiled(*args), fn(*args))
    assert counters.captures == (2 if name in TWICE else 1)
    assert counters.compilations == 0
    assert compiled.eager == EAGER.get(name, set())
